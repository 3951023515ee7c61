"""Batches: the tokens or samples that a trainer reads at each step, and the fixed held-out ones.

Held-out tokens are the start of a data set of their own, or else the last validation_tokens + 1 tokens of the data. The
other tokens are the training region. The region is cut into windows of `context` tokens that share no input. Each
window has one more token, its last target.

Held-out samples are of a source of their own, else of the source's test split, else of its training split. A fixed
pseudo-random order of these chooses them.

Each seed reads every window, or every other sample of the training split, once per epoch, in an order of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.samples import Samples, scaled
from hpxfer.data.tokens import Corpus
from hpxfer.data.windows import by_epoch

Batch = tuple[NDArray[Any], NDArray[Any]]


class Data(ABC):
    """A data set cut into the batches of one setting. A batch is (inputs, targets), of which a row is a sample."""

    validation_tokens: int
    """Held-out tokens or samples, whole batches. A sample counts as a token in what all families share."""

    @property
    @abstractmethod
    def batch_rows(self) -> int: ...

    @abstractmethod
    def rows(self, seed: int, begin: int, end: int) -> Batch:
        """Return what a seed reads as its row `begin` to its row `end`."""

    @abstractmethod
    def validation_batches(self) -> Iterator[Batch]:
        """Yield the held-out batches in order. They hold `validation_tokens` targets, each once."""

    def train_batches(self, seed: int, first_step: int, num_steps: int) -> Batch:
        """Return the batches of consecutive steps, [num_steps, batch_rows, ...] each.

        They depend on data, seed and steps, not on the run's length.
        """
        assert first_step >= 0, f"step {first_step} is before the first one"
        inputs, targets = self.rows(seed, first_step * self.batch_rows, (first_step + num_steps) * self.batch_rows)
        size = (num_steps, self.batch_rows)
        return inputs.reshape(*size, *inputs.shape[1:]), targets.reshape(*size, *targets.shape[1:])

    def train_batch(self, seed: int, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""
        inputs, targets = self.train_batches(seed, step, 1)
        return inputs[0], targets[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenData(Data):
    """Tokens. A batch is (inputs, targets), int64 [batch_rows, context] each: targets are shifted by one token."""

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
    def batch_rows(self) -> int:
        return self.batch_tokens // self.context

    @property
    def tail_start(self) -> int:
        """The first token of the held-out tail, where the training region ends."""
        return self.corpus.num_tokens - (self.validation_tokens + 1 if self.held_out is None else 0)

    @property
    def num_windows(self) -> int:
        """Training windows in an epoch."""
        return (self.tail_start - 1) // self.context

    def rows(self, seed: int, begin: int, end: int) -> Batch:
        return self._batch(self.corpus, by_epoch(begin, end, self.num_windows, seed) * self.context)

    def validation_batches(self) -> Iterator[Batch]:
        corpus, start = (self.corpus, self.tail_start) if self.held_out is None else (self.held_out, 0)
        for begin in range(start, start + self.validation_tokens, self.batch_tokens):
            yield self._batch(corpus, np.arange(begin, begin + self.batch_tokens, self.context))

    def _batch(self, corpus: Corpus, begins: NDArray[np.int64]) -> Batch:
        rows = corpus.rows(begins, self.context + 1)
        return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleData(Data):
    """Samples. A batch is (inputs float32 [B, num_inputs], targets).

    Targets are classes int64 [B], or real numbers float32 [B, num_targets].
    """

    samples: Samples
    held_out: Samples | None = None  # a source of its own
    batch_tokens: int  # samples
    validation_tokens: int

    def __post_init__(self) -> None:
        assert self.validation_tokens % self.batch_rows == 0, "the held-out samples must be whole batches"

    @property
    def batch_rows(self) -> int:
        return self.batch_tokens

    @property
    def num_kept(self) -> int:
        """The samples of the training split that are kept for validation."""
        has_own = self.held_out is not None or self.samples.num_train is None or self.samples.num_test != 0
        return 0 if has_own else self.validation_tokens

    def rows(self, seed: int, begin: int, end: int) -> Batch:
        inputs, targets = self.samples.train(seed, begin, end, self.num_kept)
        return scaled(inputs, self.samples.normalization), targets

    def validation_batches(self) -> Iterator[Batch]:
        start = (self.samples.num_train or 0) - self.num_kept if self.num_kept else 0
        for begin in range(start, start + self.validation_tokens, self.batch_rows):
            inputs, targets = (self.held_out or self.samples).held_out(begin, begin + self.batch_rows)
            yield scaled(inputs, self.samples.normalization), targets
