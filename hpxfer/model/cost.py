"""Cost: the parameters and the training FLOPs of one trial, whatever its family."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpxfer.model.families import FAMILIES
from hpxfer.model.parameters import ParameterSpec
from hpxfer.registry import rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

_EMBEDDINGS = ("embedding", "position", "readout")
_ROUTED = ("expert_in", "expert_gate", "expert_out")


@dataclass(frozen=True, kw_only=True)
class ParamCount:
    """The number of trained parameters: all of them, and those that one token meets (num_active of num_experts)."""

    total: int
    active: int


def count_params(shape: Shape, setting: Setting) -> ParamCount:
    """Return the number of parameters of one trial. A tied table counts once."""
    specs = FAMILIES.get(setting.family).parameters(shape, setting)
    total = sum(spec.numel * spec.layers for spec in specs)
    return ParamCount(total=total, active=sum(active_elements(spec, shape) for spec in specs))


def active_elements(spec: ParameterSpec, shape: Shape) -> int:
    """Return how many elements of all copies of a parameter one token or sample meets."""
    count = spec.numel * spec.layers
    if spec.name.removesuffix("_bias") in _ROUTED:
        return count * shape.num_active // shape.num_experts
    return count


def active_without_embeddings(shape: Shape, setting: Setting) -> int:
    """Return the number of parameters that one token meets without embeddings and an untied readout.

    These grow with the vocabulary and the context, and are the same for a dense and a MoE model.
    """
    specs = FAMILIES.get(setting.family).parameters(shape, setting)
    return sum(active_elements(spec, shape) for spec in specs if spec.role not in _EMBEDDINGS)


def flops_per_token(shape: Shape, setting: Setting) -> float:
    """Return the training FLOPs per token, forward and backward."""
    return FAMILIES.get(setting.family).flops_per_token(shape, setting)


def optimizer_flops(shape: Shape, setting: Setting) -> float:
    """Return the FLOPs of the optimizer's matrix products in one step: 0 but for Muon."""
    matrices = rows_of("optimizer").get(setting.optimizer).matrices
    specs = FAMILIES.get(setting.family).parameters(shape, setting)
    return math.fsum(matrices.flops(spec) for spec in specs if matrices is not None and spec.role in matrices.roles)


def optimizer_share(shape: Shape, setting: Setting) -> float:
    """Return the share of the optimizer's matrix products in the FLOPs of a step. It is 0 of an unknown model."""
    own, rest = optimizer_flops(shape, setting), flops_per_token(shape, setting) * setting.batch_tokens
    return own / (own + rest) if own else 0.0


def train_flops(shape: Shape, setting: Setting) -> float:
    """Return the FLOPs of all training steps of one trial, with those of an optimizer that multiplies matrices."""
    of_step = flops_per_token(shape, setting) * setting.batch_tokens + optimizer_flops(shape, setting)
    return of_step * setting.steps


def relative_cost(shape: Shape, setting: Setting) -> float:
    """Return what a trial costs beside others of its sweep, above 0: its FLOPs.

    The FLOPs of a user's own trainer are not known. There a token costs the same at every shape. Measured seconds would
    make what a search asks for depend on how busy a machine was.
    """
    return train_flops(shape, setting) or float(setting.batch_tokens * setting.steps)
