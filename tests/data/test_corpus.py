"""Tokens behind one index: text in memory, and memory-mapped shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.data.corpus import Corpus, load_corpus
from hpxfer.data.sources import open_dataset, source_of
from hpxfer.errors import HpxferError

Write = Callable[..., Path]


def loaded(name: str, tokenizer: str, vocab_size: int) -> Corpus:
    dataset = open_dataset(name)
    assert dataset is not None
    return load_corpus(source_of(name), dataset, tokenizer, vocab_size)


def everything(corpus: Corpus) -> list[int]:
    return corpus.rows(np.array([0]), corpus.num_tokens)[0].tolist()


def test_text_is_the_bytes_of_the_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"two")
    (tmp_path / "a").write_bytes("gr\u00fcn".encode())
    (tmp_path / "aa").touch()
    corpus = loaded(f"text:{tmp_path}/*", "bytes", 256)
    assert bytes(everything(corpus)) == "gr\u00fcntwo".encode()
    assert [part.dtype for part in corpus.parts] == [np.uint8]


def test_ascii_reads_high_bytes_as_question_marks(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x00\x7f\x80\xff" + "\u00fc".encode())
    assert bytes(everything(loaded(f"text:{tmp_path}/a", "ascii", 128))) == b"\x00\x7f????"


def test_shards_are_mapped_not_read(tmp_path: Path, write_shard: Write) -> None:
    write_shard(tmp_path / "a.bin", [1, 2, 65535])
    write_shard(tmp_path / "b.bin", [])
    write_shard(tmp_path / "c.bin", [4])
    corpus = loaded(f"tokens:{tmp_path}/*.bin", "ids", 2**16)
    assert everything(corpus) == [1, 2, 65535, 4]
    assert all(isinstance(part, np.memmap) for part in corpus.parts if len(part))


@settings(deadline=None, max_examples=examples(40))
@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any),
    length=st.integers(1, 12),
    data=st.data(),
)
def test_rows_cross_shards(counts: list[int], length: int, data: st.DataObject) -> None:
    whole = np.arange(sum(counts), dtype=np.uint16) + 7
    parts = tuple(np.split(whole, np.cumsum(counts)[:-1]))
    corpus = Corpus(parts=parts, names=("x",) * len(parts), vocab_size=2**16)
    length = min(length, len(whole))
    begins = data.draw(st.lists(st.integers(0, len(whole) - length), max_size=5))
    rows = corpus.rows(np.array(begins, np.int64), length)
    assert rows.dtype == np.int64
    assert rows.tolist() == [whole[begin : begin + length].tolist() for begin in begins]


def test_id_beyond_the_vocabulary_is_placed_in_its_file() -> None:
    parts = (np.array([1, 2, 3], np.uint16), np.array([4, 5, 60, 7], np.uint16))
    corpus = Corpus(parts=parts, names=("a.bin", "b.bin"), vocab_size=50)
    assert corpus.rows(np.array([0, 1]), 4).max() == 5
    with pytest.raises(HpxferError, match=r"b\.bin: token 2: .*below the vocabulary of 50, got 60"):
        corpus.rows(np.array([0, 2]), 4)
