"""Headers of token shards, and ids against the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpxfer.data.sources import open_dataset
from hpxfer.data.sources.dataset import check_ids
from hpxfer.errors import HpxferError

Write = Callable[..., Path]


def test_good_shards_are_counted(tmp_path: Path, write_shard: Write) -> None:
    write_shard(tmp_path / "a.bin", range(10))
    write_shard(tmp_path / "b.bin", [])
    write_shard(tmp_path / "c.bin", range(5))
    dataset = open_dataset(f"tokens:{tmp_path}/*.bin")
    assert dataset is not None
    assert [part.num_tokens for part in dataset.parts] == [10, 0, 5]
    assert dataset.num_tokens == 15


def test_shards_without_a_token_are_empty_data(tmp_path: Path, write_shard: Write) -> None:
    write_shard(tmp_path / "a.bin", [])
    with pytest.raises(HpxferError, match=r"must hold tokens, got 1 empty file"):
        open_dataset(f"tokens:{tmp_path}/a.bin")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"magic": 7},
            r"a\.bin: .*must be a file of token ids that states its format.*starts with the number 7; if it holds bare",
        ),
        ({"version": 2}, r"a\.bin: must be a token shard of version 1 .*, got version 2; write it again"),
        ({"count": 11}, r"a\.bin: the header counts 11 tokens, which make a file of 1046 bytes, got 1044; fetch"),
        ({"count": 9}, r"a\.bin: the header counts 9 tokens, which make a file of 1042 bytes, got 1044; fetch"),
        ({"count": -1}, r"a\.bin: the header counts -1 tokens"),
    ],
)
def test_wrong_header_is_refused(tmp_path: Path, write_shard: Write, wrong: dict[str, int], message: str) -> None:
    write_shard(tmp_path / "a.bin", range(10), **wrong)
    with pytest.raises(HpxferError, match=message):
        open_dataset(f"tokens:{tmp_path}/*.bin")


def test_file_shorter_than_a_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    with pytest.raises(
        HpxferError,
        match=r"a\.bin: .*got text or another file of 3 bytes; write token shards first: hpxfer data prepare",
    ):
        open_dataset(f"tokens:{tmp_path}/a.bin")


def test_one_bad_shard_among_good_ones_is_named(tmp_path: Path, write_shard: Write) -> None:
    write_shard(tmp_path / "a.bin", range(10))
    write_shard(tmp_path / "b.bin", range(10), magic=1)
    with pytest.raises(HpxferError, match=r"b\.bin: "):
        open_dataset(f"tokens:{tmp_path}/*.bin")


def test_first_id_beyond_the_vocabulary_is_named() -> None:
    check_ids(np.array([3, 9], np.uint16), 10, "a.bin", 100)
    with pytest.raises(HpxferError, match=r"a\.bin: token 101: .*below the vocabulary of 10, got 10; .*vocab_size"):
        check_ids(np.array([9, 10, 11], np.uint16), 10, "a.bin", 100)
