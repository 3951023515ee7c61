"""Network and Given: the infinite network whose training is solved, as the papers write it, and that training.

    h1 = act1(W1 x)       psi = Q h1 + b       phi = gate(beta psi)
    h2_i = W2_i h1        h3 = c sum over active i of phi_i W3_i act(h2_i)        f = W4 h3

That is MSSP 1.2. Why Routers Freeze (Def. 1) has experts of one matrix: h3 = c sum phi_i act(W3_i h1). A residual
network (CompleteP for MoE, Fig. 18) has L such blocks between W1 and W4, each of which adds h3/L to its own input h1.
With top-K, the K experts with the largest psi are active.

Letters: N width, M experts, K active experts, N_e hidden features of an expert, D inputs, C outputs, P samples of a
batch, T updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpxfer.errors import HpxferError, shown

Floats = NDArray[np.float64]
Loss = Literal["squared_error", "cross_entropy"]
Regime = Literal["I", "II", "III", "residual"]
Style = Literal["mup", "mssp"]
Gate = Literal["sigmoid", "softmax", "normalized_softmax"]
Activation = Literal["linear", "relu", "gelu", "tanh"]
Aggregation = Literal["1/K", "1/M", "none"]
RouterBias = Literal["none", "fixed", "schedule", "learned"]
Role = Literal["embedding", "router", "router_bias", "expert_in", "expert_out", "readout"]

Count = Annotated[int, Field(ge=1, strict=True)]
Above = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NotBelow = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]

REGIMES: tuple[Regime, ...] = get_args(Regime)
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, kw_only=True)
class Network:
    """What is infinite, what stays, and the constants that no table decides.

    The limit itself is that of Table B.1 of MSSP under SGD (of Table 1 of Why Routers Freeze in regime I): each role
    starts with the std of the table, times `init_mult`, and has the LR of the table, times `lr_mult`. Forward
    multipliers are 1: a multiplier m at a matrix is the same as `init_mult` m and `lr_mult` m^2.
    """

    regime: Regime
    parameterization: Style
    gate: Gate = "sigmoid"
    activation: Activation = "linear"
    """Of the experts: of their hidden features or, of experts with one matrix, of their outputs."""
    input_activation: Activation = "linear"
    aggregation: Aggregation = "1/K"
    """c: 1/K of the active experts or 1/M of all of them. `none` for a gate whose weights sum to one."""
    inverse_temperature: Above = 1.0
    num_experts: Count | None = None
    """M of regime I. Elsewhere there are infinitely many."""
    num_active: Count | None = None
    """K of regime I. None: all of them."""
    expert_matrices: Literal[1, 2] = 2
    active_share: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    """K/M in regimes II, III and residual."""
    expert_ratio: Above = 1.0
    """iota = N_e/N: in regime III, in regime I with two matrices, and in the residual network."""
    expert_width: Count | None = None
    """N_e of regime II. In the residual network None stands for infinitely many features per expert."""
    experts_per_width: Above = 1.0
    """kappa = M/N in regimes II and III. In the residual network only the LR of the router depends on it."""
    depth: Count = 1
    """L of the residual network."""
    router_bias: RouterBias = "none"
    """b. In regime I its numbers are given (`Given.router_bias`), and elsewhere they are Gaussian."""
    router_bias_std: NotBelow = 1.0
    """Of the residual network."""
    init_mult: Mapping[Role, NotBelow] = field(default_factory=dict)
    lr_mult: Mapping[Role, NotBelow] = field(default_factory=dict)

    @property
    def times_experts(self) -> float:
        """M c: what the average over infinitely many experts is multiplied by, 1 / `active_share` or 1."""
        return 1 / self.active_share if self.aggregation == "1/K" else 1.0

    @property
    def is_linear(self) -> bool:
        """Whether no layer has an activation. Regime I is then linear in Gaussians, and nothing is sampled."""
        return self.activation == self.input_activation == "linear"

    def std(self, role: Role) -> float:
        """Return the constant of a role's initial std."""
        return self.init_mult.get(role, 1.0)

    def rate(self, role: Role) -> float:
        """Return the constant of a role's LR."""
        return self.lr_mult.get(role, 1.0)


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
    """[T + 1, M] of regime I: the router bias of every pass. A bias that is fixed repeats, and of one that is learned
    only the first row is read."""
    active: tuple[NDArray[np.bool_], ...] | None = None
    """Of regime I with top-K and no bias: which experts each pass uses, [P, M] per pass. The limit depends on it."""

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
