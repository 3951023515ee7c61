"""Network: the infinite network whose training is solved, as the papers write it.

    h1 = act1(W1 x)       psi = Q h1 + b       phi = gate(beta psi)
    h2_i = W2_i h1        h3 = c sum over active i of phi_i W3_i act(h2_i)        f = W4 h3

That is MSSP 1.2. Why Routers Freeze (Def. 1) has experts of one matrix: h3 = c sum phi_i act(W3_i h1). A residual
network (CompleteP for MoE, Fig. 18) has L such blocks between W1 and W4, each of which adds h3/L to its own input h1.
With top-K, the K experts with the largest psi are active.

Letters: N width, M experts, K active experts, N_e hidden features of an expert, D inputs, C outputs, P samples of a
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Regime = Literal["I", "II", "III", "residual"]
Style = Literal["mup", "mssp"]
Gate = Literal["sigmoid", "softmax", "normalized_softmax"]
Activation = Literal["linear", "relu", "gelu", "tanh"]
Aggregation = Literal["1/K", "1/M", "none"]
RouterBias = Literal["none", "fixed", "schedule", "learned"]
Role = Literal["embedding", "router", "router_bias", "expert_in", "expert_out", "readout"]

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
    inverse_temperature: float = 1.0
    num_experts: int | None = None
    """M of regime I. Elsewhere there are infinitely many."""
    num_active: int | None = None
    """K of regime I. None: all of them."""
    expert_matrices: Literal[1, 2] = 2
    active_share: float = 1.0
    """K/M in regimes II, III and residual."""
    expert_ratio: float = 1.0
    """iota = N_e/N: in regime III, in regime I with two matrices, and in the residual network."""
    expert_width: int | None = None
    """N_e of regime II. In the residual network None stands for infinitely many features per expert."""
    experts_per_width: float = 1.0
    """kappa = M/N in regimes II and III. In the residual network only the LR of the router depends on it."""
    depth: int = 1
    """L of the residual network."""
    router_bias: RouterBias = "none"
    """b. In regime I its numbers are given (`Given.router_bias`), and elsewhere they are Gaussian."""
    router_bias_std: float = 1.0
    """Of the residual network."""
    init_mult: Mapping[Role, float] = field(default_factory=dict)
    lr_mult: Mapping[Role, float] = field(default_factory=dict)

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
