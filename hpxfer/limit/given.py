"""Given: what a limit is conditional on.

That is the samples of every pass, the LR of every update, and what is drawn at every width alike.

Letters: T updates, P samples of a batch, D inputs, C outputs, m experts of regime I.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpxfer.errors import HpxferError, shown

Floats = NDArray[np.float64]
Loss = Literal["squared_error", "cross_entropy"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The samples of one forward pass: inputs [P, D] and targets.

    Targets are real [P, C] or, under cross entropy, classes int64 [P]. Numbers of other types, such as int8 images,
    are converted. Raise HpxferError for what holds no real numbers.
    """

    inputs: Floats
    targets: NDArray[np.float64] | NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", _numbers("inputs", self.inputs))
        object.__setattr__(self, "targets", _numbers("targets", self.targets, classes=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """The training that is solved: T + 1 forward passes with T updates of plain SGD between them.

    The loss of a sample is that of the family `mlp`: the sum over outputs of (f - y)^2, or cross entropy in nats. An
    update follows the gradient of the batch's mean loss.
    """

    batches: tuple[Batch, ...]
    """One per forward pass, T + 1 in all. Full-batch training repeats one batch."""
    lrs: tuple[float, ...]
    """The base LR of every update, T in all."""
    loss: Loss = "squared_error"
    num_classes: int = 0
    """Of targets that are classes."""
    router_bias: Floats | None = None
    """[T + 1, m] of regime I: the router bias of every pass. A bias that is fixed repeats, and of one that is learned
    only the first row is read."""
    active: tuple[NDArray[np.bool_], ...] | None = None
    """Of regime I with top-K and no bias: which experts each pass uses, [P, m] per pass. The limit depends on it."""

    @property
    def num_updates(self) -> int:
        return len(self.lrs)

    @property
    def num_samples(self) -> int:
        """The samples of all passes together, T P."""
        return sum(len(batch.inputs) for batch in self.batches)

    @property
    def num_outputs(self) -> int:
        """C: the real targets of a sample, or the number of its classes."""
        targets = self.batches[0].targets
        return self.num_classes if targets.ndim == 1 else int(targets.shape[1])

    @classmethod
    def full_batch(
        cls, batch: Batch, *, steps: int, lr: float, loss: Loss = "squared_error", num_classes: int = 0
    ) -> Given:
        """Return the training on one batch for `steps` updates at a constant LR."""
        return cls(batches=(batch,) * (steps + 1), lrs=(lr,) * steps, loss=loss, num_classes=num_classes)


def _numbers(name: str, given: Any, classes: bool = False) -> NDArray[Any]:
    """Return numbers as float64, so that products of small integers do not wrap, or whole ones [P] as int64."""
    array = np.asarray(given)
    if array.dtype.kind not in "fiub" or isinstance(given, np.ma.MaskedArray):
        kind = "a masked array" if isinstance(given, np.ma.MaskedArray) else shown(str(array.dtype))
        raise HpxferError(f"{name}: must be an array of real numbers, got {kind}; convert them first")
    whole = classes and array.ndim == 1 and array.dtype.kind in "iu"
    return array.astype(np.int64 if whole else np.float64)
