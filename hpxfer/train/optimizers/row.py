"""Optimizer: the row of one update rule.

Letters: R roles, K trials, N elements of a block of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpxfer.scaling.table import Column

if TYPE_CHECKING:
    from torch import Tensor

    from hpxfer.model.parameters import ParameterSpec

Numbers = Mapping[str, "Tensor"]


@dataclass(frozen=True, kw_only=True)
class MatrixRule:
    """The update of whole matrices, for some roles."""

    roles: tuple[str, ...]
    scaled: Callable[[ParameterSpec], Any]
    """What the rule needs to know of a parameter. It raises HpxferError for one that is no matrix."""
    flops: Callable[[ParameterSpec], float]
    """The FLOPs of the matrix products of one step, over all copies of a parameter."""
    update: Callable[[Tensor, ParameterSpec, Tensor, Numbers, Any, Tensor], None]
    """(gradient [K, N], parameter, first moment, numbers [K, 1] float32, what `scaled` returned, out [K, N]): write the
    update to `out`, and move the moment in place."""


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """One update rule. Weight decay is decoupled and the same for all: p <- (1 - lr * weight decay) * p - update.

    A rule uses only operations that round exactly (+, -, *, /, sqrt). Then a trial's bits do not depend on where its
    elements fall in a vector register, that is, on the stack.
    """

    name: str
    column: Column
    """The column of a parameterization's table that holds the exponents of this rule."""
    hps: tuple[str, ...]
    """The HPs that the rule reads beside lr and weight_decay: of eps, beta1, beta2 and momentum."""
    num_moments: int
    """The vectors of the size of the parameters that the rule keeps from step to step."""
    numbers: Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]
    """(lr [R, K] of this step, betas [2, K], betas to the number of steps [2, K]), all float64 -> the numbers of this
    step by name, [R, K] or [K]. `lr` must be among them. `peak_lr` is added: the LR of this step itself."""
    update: Callable[[Tensor, tuple[Tensor, ...], Numbers, Tensor], None]
    """(gradient [K, N], moments, numbers [K, 1] float32, out [K, N]): write the update to `out`, and move the moments
    in place. The numbers are those of `numbers`, and eps, beta1, beta2 and momentum."""
    kernel: Callable[[Tensor, Tensor, tuple[Tensor, ...], Numbers, Tensor, Tensor], None] | None = None
    """The whole step as one Triton kernel: (parameters [K, N], gradient, moments, numbers, what weight decay keeps [K],
    alive [K]), in place, see `hpxfer.train.optimizers.adamw`. It may be None. Then `update` runs on CUDA too."""
    below_eps: Callable[[tuple[Tensor, ...], Numbers], Tensor] | None = None
    """(moments [K, N], numbers [K, 1] float32 of the last step) -> bool [K, N]: the elements whose gradients, by their
    root mean square over time, are smaller than eps. It goes with a rule that reads eps."""
    matrices: MatrixRule | None = None
    """The roles whose parameters are updated as matrices, and how. `update` and `kernel` are for the others."""
    momentum_moments: int = 0
    """Further vectors, which a stack keeps only if one of its trials has momentum. They come last in `moments`."""

    def moments_of(self, has_momentum: bool) -> int:
        """Return how many vectors a stack keeps, given whether one of its trials has momentum."""
        return self.num_moments + (self.momentum_moments if has_momentum else 0)
