"""Batches of samples: what a trainer reads at each step, and the fixed held-out samples.

The held-out samples are of a source of their own, else of the source's test split, else of its training split. A fixed
pseudo-random order of these chooses them. Each seed reads every other sample of the training split once per epoch, in
an order of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.samples import open_samples, sample_source_of
from hpxfer.data.samples.facts import Samples, scaled
from hpxfer.data.samples.reference import num_kept, require_alike, require_samples
from hpxfer.errors import HpxferError
from hpxfer.trial import Setting

SampleBatch = tuple[NDArray[np.float32], NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleData:
    """Samples cut into the batches of one setting. A batch is (inputs float32 [B, num_inputs], targets).

    Targets are classes int64 [B], or real numbers float32 [B, num_targets].
    """

    samples: Samples
    held_out: Samples | None = None  # a source of its own
    batch_samples: int
    validation_tokens: int
    """Held-out samples, whole batches. A sample counts as a token in what all families share."""

    def __post_init__(self) -> None:
        assert self.validation_tokens % self.batch_samples == 0, "the held-out samples must be whole batches"

    def train_batches(self, seed: int, first_step: int, num_steps: int) -> SampleBatch:
        """Return the batches of consecutive steps, [num_steps, B, ...] each.

        They depend on data, seed and steps, not on the run's length.
        """
        begin, end = (step * self.batch_samples for step in (first_step, first_step + num_steps))
        assert 0 <= begin < end, f"step {first_step} is before the first one"
        kept = num_kept(self.samples, self.held_out, self.validation_tokens)
        inputs, targets = self.samples.train(seed, begin, end, kept)
        shape = (num_steps, self.batch_samples)
        return self._scaled(inputs).reshape(*shape, -1), targets.reshape(*shape, *targets.shape[1:])

    def train_batch(self, seed: int, step: int) -> SampleBatch:
        """Return the batch of a step, counted from 0."""
        inputs, targets = self.train_batches(seed, step, 1)
        return inputs[0], targets[0]

    def validation_batches(self) -> Iterator[SampleBatch]:
        """Yield the batches of the held-out samples in order."""
        kept = num_kept(self.samples, self.held_out, self.validation_tokens)
        start = (self.samples.num_train or 0) - kept if kept else 0
        for begin in range(start, start + self.validation_tokens, self.batch_samples):
            inputs, targets = (self.held_out or self.samples).held_out(begin, begin + self.batch_samples)
            yield self._scaled(inputs), targets

    def _scaled(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        return scaled(inputs, self.samples.normalization)


def open_sample_data(setting: Setting) -> SampleData:
    """Return the samples of a setting. A process reads files once, and makes a sample once (see `endless`).

    Raise HpxferError if they are not on this machine, have another digest than the sweep's, or are too few.
    """
    samples = _opened("source", setting.data_source, setting.data_digest, setting.only_classes)
    held_out = None
    if setting.validation_digest is not None:
        assert setting.validation_source is not None, "a digest of held-out data comes with its name"
        held_out = _opened("validation", setting.validation_source, setting.validation_digest, setting.only_classes)
        require_alike("data.validation", setting.validation_source, held_out, samples)
    require_samples(
        name=setting.data_source,
        samples=samples,
        held_out=held_out,
        steps=setting.steps,
        batch_samples=setting.batch_tokens,
        validation_samples=setting.validation_tokens,
        epochs=setting.epochs,
    )
    return SampleData(
        samples=samples,
        held_out=held_out,
        batch_samples=setting.batch_tokens,
        validation_tokens=setting.validation_tokens,
    )


def _opened(key: str, name: str, expected: str, only: tuple[int, ...]) -> Samples:
    samples = open_samples(name, only)
    if samples is None:
        raise HpxferError(
            f"data.{key}: must be on every machine that trains, got {name}, which is not on this machine; copy the data"
            " to it, or share the folder"
        )
    if (found := samples.digest()) != expected:
        raise HpxferError(
            f"data.{key}: the samples of {name} on this machine differ from the sweep's: their digest must be "
            f"{expected}, got {found}; {sample_source_of(name).mismatch_fix}"
        )
    return samples
