"""The digest: what changes it and what does not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.data.digest import BLOCK_BYTES, NUM_BLOCKS, blocks, digest
from hpxfer.data.sources import open_dataset, source_of
from hpxfer.errors import HpxferError

Write = Callable[..., Path]
READ_BYTES = NUM_BLOCKS * BLOCK_BYTES


def of(name: str, vocab_size: int = 2**16) -> str:
    dataset = open_dataset(name)
    assert dataset is not None
    return digest(dataset, vocab_size if source_of(name).holds_ids else None)


def test_text_by_hand(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / "b.txt").write_bytes(b"three")
    by_hand = hashlib.blake2b(b"text 2\n3\n5\nonethree", digest_size=16).hexdigest()
    assert of(f"text:{tmp_path}/*.txt") == by_hand


def test_tokens_by_hand(tmp_path: Path, write_shard: Write) -> None:
    first = write_shard(tmp_path / "a.bin", [1, 2, 3]).read_bytes()
    second = write_shard(tmp_path / "b.bin", [4]).read_bytes()
    told = b"tokens 2\n3\n" + first[:1024] + b"1\n" + second[:1024] + first[1024:] + second[1024:]
    assert of(f"tokens:{tmp_path}/*.bin") == hashlib.blake2b(told, digest_size=16).hexdigest()


def test_move_and_rename_keep_the_digest(tmp_path: Path) -> None:
    for folder, names in (("here", "ab"), ("there", "xy")):
        (tmp_path / folder).mkdir()
        for name, text in zip(names, (b"first", b"second"), strict=True):
            (tmp_path / folder / name).write_bytes(text)
    assert of(f"text:{tmp_path}/here/*") == of(f"text:{tmp_path}/there/*")


def test_order_and_cuts_change_the_digest(tmp_path: Path) -> None:
    digests = set()
    for folder, texts in (("p", (b"ab", b"cd")), ("q", (b"cd", b"ab")), ("r", (b"abc", b"d")), ("s", (b"abcd",))):
        (tmp_path / folder).mkdir()
        for index, text in enumerate(texts):
            (tmp_path / folder / str(index)).write_bytes(text)
        digests.add(of(f"text:{tmp_path}/{folder}/*"))
    assert len(digests) == 4


def test_kind_changes_the_digest(tmp_path: Path, write_shard: Write) -> None:
    shard = write_shard(tmp_path / "a.bin", [1, 2, 3])
    assert of(f"tokens:{shard}") != of(f"text:{shard}")


@settings(deadline=None, max_examples=examples(25))
@given(text=st.binary(min_size=1, max_size=300), data=st.data())
def test_any_changed_byte_of_small_data_changes_the_digest(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("text") / "a"
    path.write_bytes(text)
    before = of(f"text:{path}")
    changed = bytearray(text)
    changed[data.draw(st.integers(0, len(text) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(changed)
    assert of(f"text:{path}") != before


def sparse(path: Path, num_bytes: int, *marks: int) -> Path:
    """Return a file of zeros with a one at each of `marks`."""
    with path.open("wb") as file:
        file.truncate(num_bytes)
        for mark in marks:
            file.seek(mark)
            file.write(b"\1")
    return path


def test_large_data_is_sampled(tmp_path: Path) -> None:
    num_bytes = 10 * READ_BYTES + 1
    inside = blocks(num_bytes, 1)[7]
    between = (inside[1] + blocks(num_bytes, 1)[8][0]) // 2
    zeros = of(f"text:{sparse(tmp_path / 'zeros', num_bytes)}")
    assert of(f"text:{sparse(tmp_path / 'between', num_bytes, between)}") == zeros
    for mark in (0, inside[0], inside[1] - 1, num_bytes - 1):
        assert of(f"text:{sparse(tmp_path / 'mark', num_bytes, mark)}") != zeros
    assert of(f"text:{sparse(tmp_path / 'longer', num_bytes + 1)}") != zeros


@settings(deadline=None, max_examples=examples(50))
@given(num_tokens=st.integers(1, 10**11), token_bytes=st.sampled_from([1, 2]))
def test_blocks_lie_in_the_data_and_reach_both_ends(num_tokens: int, token_bytes: int) -> None:
    found = blocks(num_tokens, token_bytes)
    assert found[0][0] == 0
    assert found[-1][1] == num_tokens
    assert all(low < high for low, high in found)
    assert all(before[1] <= after[0] for before, after in pairwise(found))
    assert sum(high - low for low, high in found) == min(num_tokens, READ_BYTES // token_bytes)


def test_ids_in_the_blocks_are_checked(tmp_path: Path, write_shard: Write) -> None:
    write_shard(tmp_path / "a.bin", [1, 2, 3])
    write_shard(tmp_path / "b.bin", [4, 5, 6, 7])
    of(f"tokens:{tmp_path}/*.bin", vocab_size=8)
    with pytest.raises(HpxferError, match=r"b\.bin: token 2: .*below the vocabulary of 6, got 6"):
        of(f"tokens:{tmp_path}/*.bin", vocab_size=6)


def test_position_of_an_id_in_a_later_block_is_in_the_file(tmp_path: Path, write_shard: Write) -> None:
    ids = np.zeros(3 * READ_BYTES // 2, np.uint16)
    ids[blocks(len(ids), 2)[40][0] + 5] = 9
    write_shard(tmp_path / "a.bin", ids)
    with pytest.raises(HpxferError, match=rf"a\.bin: token {int(ids.argmax())}: "):
        of(f"tokens:{tmp_path}/a.bin", vocab_size=9)
