"""Batches: the tokens that a trainer reads at each step, and the fixed held-out tokens.

The held-out tokens are the start of a data set of their own, or else the last validation_tokens + 1 tokens of the data.
The other tokens are the training region. The region is cut into windows of `context` tokens that share no input. Each
window has one more token, its last target. Each seed reads every window once per epoch, in an order of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.corpus import Corpus, load_corpus
from hpxfer.data.reference import digest, require_length, windows_of
from hpxfer.data.samples.batches import SampleData, open_sample_data
from hpxfer.data.sources import open_dataset, source_of
from hpxfer.data.windows import shuffled
from hpxfer.errors import HpxferError
from hpxfer.trial import Setting

Batch = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenData:
    """A data set cut into the batches of one setting. A batch is (inputs, targets), int64 [batch_rows, context] each.

    The targets are the inputs shifted by one token.
    """

    corpus: Corpus
    held_out: Corpus | None = None  # None: the end of `corpus`
    context: int  # tokens
    batch_tokens: int
    validation_tokens: int

    def __post_init__(self) -> None:
        assert self.batch_tokens % self.context == 0, "a batch must be whole windows"
        assert self.validation_tokens % self.batch_tokens == 0, "the held-out tokens must be whole batches"
        assert self.num_windows >= 0, "the data must be longer than the held-out tokens"

    @property
    def num_tokens(self) -> int:
        return self.corpus.num_tokens

    @property
    def batch_rows(self) -> int:
        return self.batch_tokens // self.context

    @property
    def tail_start(self) -> int:
        """The first token of the held-out tail, where the training region ends."""
        return self.num_tokens - (self.validation_tokens + 1 if self.held_out is None else 0)

    @property
    def num_windows(self) -> int:
        """Training windows in an epoch."""
        return windows_of(self.num_tokens, self.validation_tokens, self.context, own_tail=self.held_out is None)

    def train_batch(self, seed: int, step: int) -> Batch:
        """Return the batch of a step, counted from 0. It depends on data, seed and step, not on the run's length."""
        inputs, targets = self.train_batches(seed, step, 1)
        return inputs[0], targets[0]

    def train_batches(self, seed: int, first_step: int, num_steps: int) -> Batch:
        """Return the batches of consecutive steps, int64 [num_steps, batch_rows, context] each."""
        begin, end = first_step * self.batch_rows, (first_step + num_steps) * self.batch_rows
        assert 0 <= begin < end, f"step {first_step} is before the first one"
        epochs, windows = np.divmod(np.arange(begin, end), self.num_windows)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            windows[here] = shuffled(windows[here], self.num_windows, seed, epoch)
        inputs, targets = self._batch(self.corpus, windows * self.context)
        size = (num_steps, self.batch_rows, self.context)
        return inputs.reshape(size), targets.reshape(size)

    def validation_batches(self) -> Iterator[Batch]:
        """Yield the batches of the held-out tokens in order. They hold `validation_tokens` targets, each token once."""
        corpus, start = (self.corpus, self.tail_start) if self.held_out is None else (self.held_out, 0)
        for begin in range(start, start + self.validation_tokens, self.batch_tokens):
            yield self._batch(corpus, np.arange(begin, begin + self.batch_tokens, self.context))

    def _batch(self, corpus: Corpus, begins: NDArray[np.int64]) -> Batch:
        rows = corpus.rows(begins, self.context + 1)
        return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


Data = TokenData | SampleData


def open_data(setting: Setting) -> Data:
    """Return the data of a setting, opened once per process: samples where a sample has inputs, else tokens.

    Text and samples are read into memory, shards are memory-mapped. Raise HpxferError if the data is not on this
    machine, has another digest than the sweep's, or is shorter than the run.
    """
    return open_sample_data(setting) if setting.num_inputs else _open_tokens(setting)


def _open_tokens(setting: Setting) -> TokenData:
    corpus = _corpus("source", setting.data_source, setting.data_digest, setting.tokenizer, setting.vocab_size)
    held_out = None
    if setting.validation_digest is not None:
        assert setting.validation_source is not None, "a digest of held-out data comes with its name"
        known = setting.validation_source, setting.validation_digest, setting.tokenizer, setting.vocab_size
        held_out = _corpus("validation", *known)
    require_length(
        name=setting.data_source,
        num_tokens=corpus.num_tokens,
        held_out=None if held_out is None else (str(setting.validation_source), held_out.num_tokens),
        steps=setting.steps,
        batch_tokens=setting.batch_tokens,
        validation_tokens=setting.validation_tokens,
        context=setting.context,
        epochs=setting.epochs,
    )
    return TokenData(
        corpus=corpus,
        held_out=held_out,
        context=setting.context,
        batch_tokens=setting.batch_tokens,
        validation_tokens=setting.validation_tokens,
    )


# Few, because text stays in memory as long as it is cached. A sweep has one data set, and at most one of held-out data.
@lru_cache(maxsize=2)
def _corpus(key: str, name: str, expected: str, tokenizer: str, vocab_size: int) -> Corpus:
    source, dataset = source_of(name), open_dataset(name, f"data.{key}")
    if dataset is None:
        raise HpxferError(
            f"data.{key}: must be on every machine that trains, got {name}, which no file on this machine matches; "
            f"copy the data to it, or share the folder"
        )
    found = digest(dataset, vocab_size if source.holds_ids else None)
    if found != expected:
        raise HpxferError(
            f"data.{key}: the data at {name} on this machine differs from the sweep's: its digest must be "
            f"{expected}, got {found}; {source.mismatch_fix}"
        )
    return load_corpus(source, dataset, tokenizer, vocab_size)
