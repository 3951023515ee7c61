"""The conformance suite of data sources. Derive a pytest class from `DataSourceSuite` and give it the fixture `source`.

class TestMine(DataSourceSuite):
    @pytest.fixture
    def source(self, tmp_path):
        ...  # write some data of at least 200 tokens, better in two files
        return f"mine:{tmp_path}/*.mine"
"""

from __future__ import annotations

import string

import numpy as np

from hpxfer.data.batches import TokenData
from hpxfer.data.corpus import load_corpus
from hpxfer.data.reference import data_ref, digest
from hpxfer.data.sources import SOURCES, Dataset, DataSource, open_dataset, source_of
from hpxfer.spec.data_section import DataSpec

FEWEST_TOKENS = 200


def opened(source: str) -> Dataset:
    found = open_dataset(source)
    assert found is not None, f"{source} names no data on this machine"
    return found


def vocabularies(row: DataSource) -> list[tuple[str, int]]:
    """Return each (tokenizer, size of the vocabulary) that a sweep may have with this source."""
    ids = [("ids", row.max_vocab_size)] if row.max_vocab_size is not None else []
    return [*row.tokenizers.items(), *ids]


class DataSourceSuite:
    """Derive from it, and define the fixture `source`: a name such as `mine:PATH` of data on this machine."""

    def test_the_row_is_registered_and_says_how_it_is_used(self, source: str) -> None:
        row = source_of(source)
        assert SOURCES.get(row.name) is row
        assert row.usage.startswith(f"{row.name}:")
        assert set(row.name) <= set(string.ascii_lowercase + string.digits + "_-")
        assert vocabularies(row), "a sweep must be able to name a vocabulary"
        assert all(0 < size <= 2**31 for _, size in vocabularies(row))
        assert row.problem(source.partition(":")[2]) is None

    def test_a_path_without_data_is_no_data(self, source: str) -> None:
        row = source_of(source)
        if row.is_path:
            assert open_dataset(f"{row.name}:/nowhere/at/all") is None

    def test_parts_add_up(self, source: str) -> None:
        found = opened(source)
        assert found.num_tokens == sum(part.num_tokens for part in found.parts) >= FEWEST_TOKENS
        assert found.format.isidentifier()
        assert all(part.path for part in found.parts)

    def test_a_part_reads_the_tokens_that_it_is_asked_for(self, source: str) -> None:
        found = opened(source)
        for part in found.parts:
            whole = part.read(0, part.num_tokens)
            assert whole.shape == (part.num_tokens,)
            assert np.issubdtype(whole.dtype, np.unsignedinteger)
            assert whole.dtype.itemsize == found.token_bytes
            for low, high in ((0, 0), (0, 1), (part.num_tokens // 2, part.num_tokens), (1, part.num_tokens - 1)):
                if 0 <= low <= high <= part.num_tokens:
                    assert np.array_equal(part.read(low, high), whole[low:high]), f"tokens {low} to {high}"

    def test_the_digest_is_a_function_of_the_data(self, source: str) -> None:
        first, second = digest(opened(source)), digest(opened(source))
        assert first == second
        assert len(first) == 32
        size = None if source_of(source).tokenizers else source_of(source).max_vocab_size
        assert data_ref(DataSpec(source=source, vocab_size=size)).digest == first

    def test_every_tokenizer_gives_ids_of_its_vocabulary(self, source: str) -> None:
        row, found = source_of(source), opened(source)
        for tokenizer, size in vocabularies(row):
            corpus = load_corpus(row, found, tokenizer, size)
            assert corpus.num_tokens == found.num_tokens, tokenizer
            assert all(np.issubdtype(part.dtype, np.unsignedinteger) for part in corpus.parts), tokenizer
            assert all(part.max(initial=0) < size for part in corpus.parts), tokenizer

    def test_loading_twice_gives_the_same_ids(self, source: str) -> None:
        row = source_of(source)
        tokenizer, size = vocabularies(row)[0]
        every = [load_corpus(row, opened(source), tokenizer, size) for _ in range(2)]
        first, second = (np.concatenate(corpus.parts) for corpus in every)
        assert np.array_equal(first, second)

    def test_ids_are_those_of_the_parts(self, source: str) -> None:
        """Where the parts hold ids, loading changes none of them."""
        row, found = source_of(source), opened(source)
        if row.holds_ids:
            tokenizer, size = vocabularies(row)[0]
            loaded = np.concatenate(load_corpus(row, found, tokenizer, size).parts)
            assert np.array_equal(loaded, np.concatenate([part.read(0, part.num_tokens) for part in found.parts]))

    def test_batches_read_the_data_in_order(self, source: str) -> None:
        """The targets are the inputs shifted by one token, and the held-out tail is the end of the data."""
        row, found = source_of(source), opened(source)
        tokenizer, size = vocabularies(row)[0]
        corpus = load_corpus(row, found, tokenizer, size)
        data = TokenData(corpus=corpus, context=8, batch_tokens=32, validation_tokens=64)
        inputs, targets = data.train_batch(seed=0, step=0)
        assert np.array_equal(inputs[:, 1:], targets[:, :-1])
        tail = np.concatenate([batch[1].ravel() for batch in data.validation_batches()])
        assert np.array_equal(tail, np.concatenate(corpus.parts)[-64:])
