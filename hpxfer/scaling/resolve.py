"""From base HPs to the absolute numbers of a tensor: the one place where a factor meets a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpxfer.hps import HPs
from hpxfer.scaling.evaluate import Multipliers, Parameterization, evaluate
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.scaling.table import Optimizer
from hpxfer.shape import Shape


@dataclass(frozen=True, kw_only=True)
class BaseInit:
    """How the base model starts: matrices by fan-in or by one constant std, embedding and position by constants."""

    matrices: Literal["fan_in", "constant"] = "fan_in"
    matrix_std: float = 0.02  # read if matrices == "constant"
    embedding_std: float = 0.02
    position_std: float = 0.02


def base_init_std(role: str, base: Shape, init: BaseInit, hps: HPs) -> float:
    """Return the init std of a role at the base shape; 0 for the roles that start at exact ones or zeros."""
    mult = hps.get(f"{role}.init_mult")
    match ROLES[role]:
        case "matrix":
            fan_in = getattr(base, fan_in_dim(role))
            std = init.matrix_std if init.matrices == "constant" else (fan_in**-0.5 if fan_in else 0.0)
            return float(hps.init_scale * std * mult)
        case "embedding":
            return init.embedding_std * mult
        case "position":
            return init.position_std * mult
        case "ones" | "zeros":
            return 0.0


def base_forward(role: str, base: Shape, hps: HPs) -> float:
    """Return what the base block multiplies this role's output by.

    A branch is added to the residual stream times `residual_scale`; the MoE layer sums its active experts times
    1/num_active of the *base*: at any other shape, averaging is the parameterization's business.
    """
    match role:
        case "attn_out" | "dense_out" | "shared_out":
            return hps.residual_scale
        case "expert_out":
            return hps.residual_scale / base.num_active
        case _:
            return 1.0


def resolve(
    choice: Parameterization, base: Shape, target: Shape, optimizer: Optimizer, hps: HPs, init: BaseInit
) -> dict[str, Multipliers]:
    """Return role -> absolute init std, peak LR, eps, weight decay and forward multiplier at `target`.

    `lr` of `router_bias` is the rate of the balancing rule. The forward multiplier of a branch holds the whole
    product that its output is multiplied by: residual_scale, 1/num_active of the base and the table's factor.
    """
    factors = evaluate(choice, base, target, optimizer)
    out = {}
    for role, factor in factors.items():
        lr = hps.router_bias_lr if role == "router_bias" else hps.lr
        out[role] = Multipliers(
            init_std=base_init_std(role, base, init, hps) * factor.init_std,
            lr=lr * hps.get(f"{role}.lr_mult") * factor.lr,
            eps=hps.eps * factor.eps,
            weight_decay=hps.weight_decay * factor.weight_decay,
            forward=base_forward(role, base, hps) * factor.forward,
        )
    return out
