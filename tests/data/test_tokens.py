"""Tokens behind one index: the corpus, its digest, and the order of the training windows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from laws import examples

from hpxfer.data.sources import load_corpus, open_dataset, source_of
from hpxfer.data.tokens import BLOCK_BYTES, NUM_BLOCKS, Corpus, cumulative, spans, spread
from hpxfer.data.windows import shuffled
from hpxfer.errors import HpxferError

Write = Callable[..., Path]


def loaded(name: str, tokenizer: str, vocab_size: int) -> Corpus:
    dataset = open_dataset(name)
    assert dataset is not None
    return load_corpus(name, dataset, tokenizer, vocab_size)


def everything(corpus: Corpus) -> list[int]:
    return corpus.rows(np.array([0]), corpus.num_tokens)[0].tolist()


def test_text_is_the_bytes_of_the_files_in_order_and_ascii_marks_high_bytes(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"two")
    (tmp_path / "a").write_bytes(b"\x00\x7f\x80\xff" + "\u00fc".encode())
    corpus = loaded(f"text:{tmp_path}/*", "bytes", 256)
    assert bytes(everything(corpus)) == b"\x00\x7f\x80\xff" + "\u00fctwo".encode()
    assert [part.dtype for part in corpus.parts] == [np.uint8]
    assert bytes(everything(loaded(f"text:{tmp_path}/*", "ascii", 128))) == b"\x00\x7f????two"


def test_shards_are_mapped_not_read(tmp_path: Path, write_shard: Write) -> None:
    for name, ids in (("a", [1, 2, 65535]), ("b", []), ("c", [4])):
        write_shard(tmp_path / f"{name}.bin", ids)
    corpus = loaded(f"tokens:{tmp_path}/*.bin", "ids", 2**16)
    assert everything(corpus) == [1, 2, 65535, 4]
    assert all(isinstance(part, np.memmap) for part in corpus.parts if len(part))


@settings(deadline=None, max_examples=examples(50))
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=8), data=st.data())
def test_spans_make_up_the_range(counts: list[int], data: st.DataObject) -> None:
    starts = cumulative(counts)
    begin = data.draw(st.integers(0, starts[-1]))
    end = data.draw(st.integers(begin, starts[-1]))
    found = list(spans(starts, begin, end))
    assert [starts[part] + token for part, low, high in found for token in range(low, high)] == list(range(begin, end))
    assert all(0 <= low < high <= counts[part] for part, low, high in found)


@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any), length=st.integers(1, 12), data=st.data()
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


READ_BYTES = NUM_BLOCKS * BLOCK_BYTES


def blocks(num_tokens: int, token_bytes: int) -> list[tuple[int, int]]:
    return spread(num_tokens, BLOCK_BYTES // token_bytes, NUM_BLOCKS)


def of(name: str, vocab_size: int = 2**16) -> str:
    dataset = open_dataset(name)
    assert dataset is not None
    return dataset.digest(vocab_size if source_of(name).holds_ids else None)


def test_digests_by_hand(tmp_path: Path, write_shard: Write) -> None:
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / "b.txt").write_bytes(b"three")
    assert of(f"text:{tmp_path}/*.txt") == hashlib.blake2b(b"text 2\n3\n5\nonethree", digest_size=16).hexdigest()
    first = write_shard(tmp_path / "a.bin", [1, 2, 3]).read_bytes()
    assert of(f"tokens:{tmp_path}/a.bin") != of(f"text:{tmp_path}/a.bin")
    second = write_shard(tmp_path / "b.bin", [4]).read_bytes()
    told = b"tokens 2\n3\n" + first[:1024] + b"1\n" + second[:1024] + first[1024:] + second[1024:]
    assert of(f"tokens:{tmp_path}/*.bin") == hashlib.blake2b(told, digest_size=16).hexdigest()


def test_order_and_cuts_change_the_digest_and_names_do_not(tmp_path: Path) -> None:
    digests = {}
    for folder, texts in (("pa", "ab cd"), ("xb", "ab cd"), ("q", "cd ab"), ("r", "abc d"), ("s", "abcd")):
        (tmp_path / folder).mkdir()
        for index, text in enumerate(texts.split()):
            (tmp_path / folder / f"{folder}{index}").write_text(text)
        digests[folder] = of(f"text:{tmp_path}/{folder}/*")
    assert digests["pa"] == digests["xb"]
    assert len(set(digests.values())) == 4


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
    assert (found[0][0], found[-1][1]) == (0, num_tokens)
    assert all(low < high for low, high in found)
    assert all(before[1] <= after[0] for before, after in pairwise(found))
    assert sum(high - low for low, high in found) == min(num_tokens, READ_BYTES // token_bytes)


def test_ids_in_the_blocks_are_checked_and_placed_in_their_file(tmp_path: Path, write_shard: Write) -> None:
    write_shard(tmp_path / "a.bin", [1, 2, 3])
    write_shard(tmp_path / "b.bin", [4, 5, 6, 7])
    of(f"tokens:{tmp_path}/*.bin", vocab_size=8)
    with pytest.raises(HpxferError, match=r"b\.bin: token 2: .*below the vocabulary of 6, got 6"):
        of(f"tokens:{tmp_path}/*.bin", vocab_size=6)
    ids = np.zeros(3 * READ_BYTES // 2, np.uint16)
    ids[blocks(len(ids), 2)[40][0] + 5] = 9
    write_shard(tmp_path / "c.bin", ids)
    with pytest.raises(HpxferError, match=rf"c\.bin: token {int(ids.argmax())}: "):
        of(f"tokens:{tmp_path}/c.bin", vocab_size=9)


@settings(deadline=None, max_examples=examples(60))
@given(size=st.integers(1, 3000), seed=st.integers(0, 2**63))
@example(size=1, seed=0)
@example(size=4, seed=0)
@example(size=1025, seed=0)
def test_every_size_and_seed_gives_a_permutation(size: int, seed: int) -> None:
    assert np.sort(shuffled(np.arange(size), size, seed)).tolist() == list(range(size))


@given(size=st.integers(1, 10**12), seed=st.integers(0, 1000), data=st.data())
def test_an_index_alone_goes_where_it_goes_in_company(size: int, seed: int, data: st.DataObject) -> None:
    index = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    together = shuffled(index, size, seed)
    assert together.dtype == np.int64
    assert ((together >= 0) & (together < size)).all()
    assert together.tolist() == [int(shuffled(index[i : i + 1], size, seed)[0]) for i in range(len(index))]


def test_order_is_pinned() -> None:
    """Stored trials were trained in this order. A change of the order must increase TRAINER_VERSION."""
    assert shuffled(np.arange(10), 10, 0).tolist() == [5, 7, 6, 3, 0, 4, 1, 9, 2, 8]
    assert shuffled(np.arange(4), 10**9, 1).tolist() == [947089523, 75351466, 50682439, 487068384]


def test_seeds_give_unrelated_orders() -> None:
    size = 4096
    orders = [shuffled(np.arange(size), size, seed) for seed in range(20)]
    fixed = [int((order == other).sum()) for i, order in enumerate(orders) for other in [np.arange(size), *orders[:i]]]
    # Two random permutations agree in one place on average, Poisson: 12 or more places have a chance below 1e-8.
    assert max(fixed) < 12
    assert 0.5 < np.mean(fixed) < 1.5
