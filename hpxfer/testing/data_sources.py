"""The conformance suite of data sources. Derive a pytest class from `DataSourceSuite`, and define `source`."""

from __future__ import annotations

import re

import numpy as np

from hpxfer.data import SOURCES, Corpus, Dataset, DataSource, TokenData, data_ref, load_corpus, open_dataset, source_of
from hpxfer.spec import DataSpec

FEWEST_TOKENS = 200


def opened(source: str) -> Dataset:
    found = open_dataset(source)
    assert found is not None, f"{source} names no data on this machine"
    return found


def vocabularies(row: DataSource) -> list[tuple[str, int]]:
    """Return each (tokenizer, size of the vocabulary) that a sweep may have with this source."""
    return [*row.tokenizers.items(), *([] if row.max_vocab_size is None else [("ids", row.max_vocab_size)])]


def loaded(source: str) -> Corpus:
    return load_corpus(source, opened(source), *vocabularies(source_of(source))[0])


class DataSourceSuite:
    """Derive from it, and define the fixture `source`: a name such as `mine:PATH` of at least 200 tokens."""

    def test_the_row_is_registered_and_says_how_it_is_used(self, source: str) -> None:
        row = source_of(source)
        assert SOURCES.get(row.name) is row
        assert row.usage.startswith(f"{row.name}:")
        assert re.fullmatch("[a-z0-9_-]+", row.name)
        assert vocabularies(row), "a sweep must be able to name a vocabulary"
        assert all(0 < size <= 2**31 for _, size in vocabularies(row))
        assert row.problem(source.partition(":")[2]) is None
        assert not row.is_path or open_dataset(f"{row.name}:/nowhere/at/all") is None

    def test_a_part_reads_the_tokens_that_it_is_asked_for(self, source: str) -> None:
        found = opened(source)
        assert found.num_tokens == sum(part.num_tokens for part in found.parts) >= FEWEST_TOKENS
        assert found.format.isidentifier()
        for part in found.parts:
            whole, last = part.read(0, part.num_tokens), part.num_tokens
            assert part.path
            assert whole.shape == (last,)
            assert np.issubdtype(whole.dtype, np.unsignedinteger)
            assert whole.dtype.itemsize == found.token_bytes
            for low, high in ((0, 0), (0, last // 3), (last // 2, last), (last // 3, last - last // 3)):
                assert np.array_equal(part.read(low, high), whole[low:high]), f"tokens {low} to {high}"

    def test_the_digest_is_a_function_of_the_data(self, source: str) -> None:
        first, second = opened(source).digest(), opened(source).digest()
        assert (first, len(first)) == (second, 32)
        size = None if source_of(source).tokenizers else source_of(source).max_vocab_size
        assert data_ref(DataSpec(source=source, vocab_size=size)).digest == first

    def test_every_tokenizer_gives_ids_of_its_vocabulary(self, source: str) -> None:
        row, found = source_of(source), opened(source)
        for tokenizer, size in vocabularies(row):
            corpus = load_corpus(source, found, tokenizer, size)
            assert corpus.num_tokens == found.num_tokens, tokenizer
            assert all(np.issubdtype(part.dtype, np.unsignedinteger) for part in corpus.parts), tokenizer
            assert all(part.max(initial=0) < size for part in corpus.parts), tokenizer

    def test_loading_twice_gives_the_same_ids(self, source: str) -> None:
        """Where the parts hold ids, loading changes none of them."""
        first, second = (np.concatenate(loaded(source).parts) for _ in range(2))
        assert np.array_equal(first, second)
        if source_of(source).holds_ids:
            parts = opened(source).parts
            assert np.array_equal(first, np.concatenate([part.read(0, part.num_tokens) for part in parts]))

    def test_batches_read_the_data_in_order(self, source: str) -> None:
        """The targets are the inputs shifted by one token, and the held-out tail is the end of the data."""
        corpus = loaded(source)
        data = TokenData(corpus=corpus, context=8, batch_tokens=32, validation_tokens=64)
        inputs, targets = data.train_batch(seed=0, step=0)
        assert np.array_equal(inputs[:, 1:], targets[:, :-1])
        tail = np.concatenate([batch[1].ravel() for batch in data.validation_batches()])
        assert np.array_equal(tail, np.concatenate(corpus.parts)[-64:])
