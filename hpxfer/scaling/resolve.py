"""From base HPs to the absolute numbers of a tensor. Only this module multiplies factors with values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Multipliers, Parameterization, evaluate, evaluate_globals, reference
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column


@dataclass(frozen=True, kw_only=True)
class BaseInit:
    """How the base model starts: matrices by fan-in or by a constant std, embedding and position by constants.

    `init_scale` multiplies the std of the matrices, or of `all`: that of embedding and position too.
    """

    matrices: Literal["fan_in", "constant"] = "fan_in"
    matrix_std: float = 0.02  # read if matrices == "constant"
    embedding_std: float = 0.02
    position_std: float = 0.02
    scale_of: Literal["matrices", "all"] = "matrices"


@dataclass(frozen=True, kw_only=True)
class GlobalValues:
    """The numbers of a shape that belong to no single role."""

    route_scale: float  # multiplies gates that sum to one, and no plain sigmoid gate
    beta1: float
    beta2: float


def base_init_std(role: str, base: Shape, init: BaseInit, hps: HPs) -> float:
    """Return the init std of a role at the base shape. It is 0 for roles that start at exact ones or zeros."""
    mult = hps.get(f"{role}.init_mult")
    of_embeddings = hps.init_scale if init.scale_of == "all" else 1.0
    match ROLES[role]:
        case "matrix":
            fan_in = getattr(reference(base), fan_in_dim(role))
            std = init.matrix_std if init.matrices == "constant" else (fan_in**-0.5 if fan_in else 0.0)
            return float(hps.init_scale * std * mult)
        case "embedding":
            return init.embedding_std * of_embeddings * mult
        case "position":
            return init.position_std * of_embeddings * mult
        case "ones" | "zeros":
            return 0.0


def base_forward(role: str, base: Shape, hps: HPs) -> float:
    """Return the factor by which the base block multiplies the output of this role.

    A block adds each branch to the residual stream, times `residual_scale`. A MoE layer also averages: it multiplies
    the sum of its shared and active experts by 1/num_active of the base. At other shapes the parameterization decides
    how to average. If the base has no dense FFN, a dense FFN takes over the factor of the base's experts. All of it is
    multiplied by the `forward_mult` of the role.
    """
    mult = hps.get(f"{role}.forward_mult")
    match role:
        case "attn_out":
            return hps.residual_scale * mult
        case "dense_out" if base.dense_width:
            return hps.residual_scale * mult
        case "expert_out" | "shared_out" | "dense_out":
            return hps.residual_scale / reference(base).num_active * mult
        case _:
            return mult


def resolve(
    choice: Parameterization,
    base: Shape,
    target: Shape,
    optimizer: Column,
    hps: HPs,
    init: BaseInit,
    *,
    learned_bias_std: float | None = None,
) -> dict[str, Multipliers]:
    """Return role -> absolute init std, peak LR, eps, weight decay and forward multiplier at `target`.

    The `lr` of `router_bias` is the rate of the balancing rule. With `learned_bias_std` the optimizer trains the bias,
    which starts at this std at every shape, and has an LR as other roles do. The forward multiplier of a branch is the
    whole factor of its output: residual_scale times 1/num_active of the base times `forward_mult` times the factor of
    the table.
    """
    factors = evaluate(choice, base, target, optimizer, trained_bias=learned_bias_std is not None)
    out = {}
    for role, factor in factors.items():
        learned = role == "router_bias" and learned_bias_std is not None
        lr = hps.router_bias_lr if role == "router_bias" and not learned else hps.lr
        out[role] = Multipliers(
            init_std=learned_bias_std or 0.0 if learned else base_init_std(role, base, init, hps) * factor.init_std,
            lr=lr * hps.get(f"{role}.lr_mult") * factor.lr,
            eps=hps.eps * factor.eps,
            weight_decay=hps.weight_decay * factor.weight_decay,
            forward=base_forward(role, base, hps) * factor.forward,
        )
    return out


def resolve_globals(choice: Parameterization, base: Shape, target: Shape, hps: HPs) -> GlobalValues:
    """Return the route scale and the betas at `target`. Raise HpxferError if a beta leaves [0, 1).

    The route scale of the base is its num_active. Gates that sum to one then have the size of sigmoid gates, about 1.
    """
    factors = evaluate_globals(choice, base, target)

    def beta(name: str) -> float:
        value = 1 - (1 - hps.get(name)) * factors.one_minus_beta
        if not 0 <= value < 1:
            raise HpxferError(
                f"{choice.name}: {name} must be in [0, 1), got {value:g}: 1 - {name} is {1 - hps.get(name):g} at the "
                f"base and grows by {factors.one_minus_beta:g} at {target.label(schedule=True)}; take a larger {name}, "
                "or stay nearer to the base's batch and duration"
            )
        return float(value)

    # Where nothing changes, 1 - (1 - beta) is not computed: it could differ from beta in the last bit.
    still = factors.one_minus_beta == 1.0
    return GlobalValues(
        route_scale=reference(base).num_active * factors.route_scale,
        beta1=hps.beta1 if still else beta("beta1"),
        beta2=hps.beta2 if still else beta("beta2"),
    )
