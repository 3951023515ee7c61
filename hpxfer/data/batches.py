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
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.reference import is_ids, require_alike, require_length
from hpxfer.data.samples import Samples, scaled
from hpxfer.data.sources import Dataset, load_corpus, opened, row_of, source_of
from hpxfer.data.tokens import Corpus
from hpxfer.data.windows import by_epoch
from hpxfer.errors import HpxferError
from hpxfer.trial import Setting

Batch = tuple[NDArray[Any], NDArray[Any]]


class Data(ABC):
    """A data set cut into the batches of one setting. A batch is (inputs, targets), of which a row is a sample."""

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
    batch_samples: int
    validation_tokens: int
    """Held-out samples, whole batches. A sample counts as a token in what all families share."""

    def __post_init__(self) -> None:
        assert self.validation_tokens % self.batch_samples == 0, "the held-out samples must be whole batches"

    @property
    def batch_rows(self) -> int:
        return self.batch_samples

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
        for begin in range(start, start + self.validation_tokens, self.batch_samples):
            inputs, targets = (self.held_out or self.samples).held_out(begin, begin + self.batch_samples)
            yield scaled(inputs, self.samples.normalization), targets


def open_data(setting: Setting) -> TokenData | SampleData:
    """Return the data of a setting, opened once per process: samples where a sample has inputs, else tokens.

    Text and samples are read into memory, shards are memory-mapped. Raise HpxferError if the data is not on this
    machine, has another digest than the sweep's, or is shorter than the run.
    """
    known = setting.tokenizer, setting.vocab_size, setting.only_classes
    check = _checked if setting.num_inputs else _kept  # samples are kept as long as their files do not change
    found = check("source", setting.data_source, setting.data_digest, *known)
    held_out = None
    if setting.validation_digest is not None:
        assert setting.validation_source is not None, "a digest of held-out data comes with its name"
        held_out = check("validation", setting.validation_source, setting.validation_digest, *known)
        require_alike("data.validation", setting.validation_source, held_out, found)
    require_length(
        setting.data_source,
        found,
        held_out=None if held_out is None else (str(setting.validation_source), held_out),
        steps=setting.steps,
        batch=setting.batch_tokens,
        validation=setting.validation_tokens,
        context=setting.context,
        epochs=setting.epochs,
    )
    if isinstance(found, Corpus):
        assert held_out is None or isinstance(held_out, Corpus)
        return TokenData(
            corpus=found,
            held_out=held_out,
            context=setting.context,
            batch_tokens=setting.batch_tokens,
            validation_tokens=setting.validation_tokens,
        )
    assert not isinstance(held_out, Corpus)
    return SampleData(
        samples=found,
        held_out=held_out,
        batch_samples=setting.batch_tokens,
        validation_tokens=setting.validation_tokens,
    )


def _checked(
    key: str, name: str, expected: str, tokenizer: str, vocab_size: int, only: tuple[int, ...]
) -> Corpus | Samples:
    """Return the tokens or samples of a sweep. Raise HpxferError if they are not here, or have another digest."""
    found = opened(name, f"data.{key}", only)
    if found is None:
        raise HpxferError(
            f"data.{key}: must be on every machine that trains, got {name}, which no file on this machine matches; "
            "copy the data to it, or share the folder"
        )
    digest = found.digest(vocab_size if is_ids(name) else None) if isinstance(found, Dataset) else found.digest()
    if digest != expected:
        raise HpxferError(
            f"data.{key}: the data at {name} on this machine differs from the sweep's: its digest must be "
            f"{expected}, got {digest}; {row_of(name).mismatch_fix}"
        )
    return load_corpus(source_of(name), found, tokenizer, vocab_size) if isinstance(found, Dataset) else found


# Few, because text stays in memory as long as it is kept. A sweep has one data set, and at most one of held-out data.
_kept = lru_cache(maxsize=2)(_checked)
