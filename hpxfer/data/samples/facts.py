"""Facts: what a source of samples says about every sample, and the interface that training reads all sources by.

A sample has `num_inputs` features and a target. The target is a class, from 0 on, or a row of real numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# (inputs [N, num_inputs] uint8 or float32, targets int64 [N] or float32 [N, num_targets])
Rows = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What holds for every sample of a source."""

    shape: tuple[int, ...]
    """The dimensions of one sample, e.g. (28, 28)."""
    is_pixels: bool
    """Whether inputs are bytes, which are normalized. Otherwise they are real numbers, which are read as they are."""
    num_classes: int = 0
    """0 where targets are real."""
    num_targets: int = 0
    """Real targets of a sample. 0 where the target is a class."""

    @property
    def num_inputs(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def targets(self) -> str:
        """The targets in words."""
        return f"{self.num_classes} classes" if self.num_classes else f"{self.num_targets} real targets"


class Samples(Protocol):
    """The samples of a source, or those of its classes that a sweep wants."""

    @property
    def facts(self) -> Facts: ...

    @property
    def num_train(self) -> int | None:
        """The samples of the training split. None: they never end."""

    @property
    def num_test(self) -> int | None:
        """The samples of the test split: 0 without one. None: they never end."""

    def only(self, classes: tuple[int, ...]) -> Samples:
        """Return the samples of these classes, which are numbered anew in this order. With none, all samples."""

    def digest(self) -> str:
        """Return the identity of the whole source, 32 hex digits."""

    def train(self, seed: int, begin: int, end: int, num_kept: int) -> Rows:
        """Return what a seed reads from its sample `begin` to its sample `end`, epoch after epoch.

        `num_kept` samples of the split are kept for validation and never read.
        """

    def held_out(self, begin: int, end: int) -> Rows:
        """Return samples `begin` to `end` of the test split, in an order of the source's own.

        Of a source without a test split they are of the training split, and the last ones are those that are kept.
        """

    @property
    def normalization(self) -> tuple[float, float] | None:
        """The mean and the standard deviation that normalize pixels. None: inputs are read as they are."""


def scaled(inputs: NDArray[Any], normalization: tuple[float, float] | None) -> NDArray[np.float32]:
    """Return inputs as a model reads them: a pixel becomes (pixel - mean) / std."""
    return inputs if normalization is None else _pixel_table(*normalization)[inputs]


@lru_cache(maxsize=8)
def _pixel_table(mean: float, std: float) -> NDArray[np.float32]:
    """Return what each of the 256 values of a pixel becomes. It is computed in float64 and rounded once."""
    return ((np.arange(256) - mean) / std).astype(np.float32)
