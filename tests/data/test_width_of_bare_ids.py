"""Ids of uint32 are not read as uint16, and no data of uint16 is taken for uint32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpxfer.data import data_ref
from hpxfer.data.sources.bare import pairs_of_uint32
from hpxfer.errors import HpxferError
from hpxfer.spec.data_section import DataSpec

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("vocab_size", [2, 200, 50_257, 128_256])
def test_ids_of_uint32_are_refused_as_uint16(vocab_size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    RNG.integers(0, vocab_size, 3000).astype("<u4").tofile(path)
    with pytest.raises(HpxferError, match=r"a\.npy: must hold ids of uint16, got ids of uint32: .* write uint32: inst"):
        data_ref(DataSpec(source=f"uint16:{path}", vocab_size=min(vocab_size, 65_536)))
    assert data_ref(DataSpec(source=f"uint32:{path}", vocab_size=vocab_size)).digest


@pytest.mark.parametrize("vocab_size", [1, 2, 5, 16, 65, 50_257])
def test_ids_of_uint16_are_read_whatever_the_vocabulary(vocab_size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    RNG.integers(0, vocab_size, 4000).astype("<u2").tofile(path)
    assert data_ref(DataSpec(source=f"uint16:{path}", vocab_size=vocab_size)).digest


def test_too_few_ids_decide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.array([7] * 63, "<u4").tofile(path)
    assert pairs_of_uint32(path.read_bytes()) == 63
    assert data_ref(DataSpec(source=f"uint16:{path}", vocab_size=8)).digest
    np.array([7] * 64, "<u4").tofile(path)
    with pytest.raises(HpxferError, match="got ids of uint32"):
        data_ref(DataSpec(source=f"uint16:{path}", vocab_size=8))
