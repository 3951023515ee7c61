"""HPs: the base hyperparameters of a trial. A sweep may scan each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.scaling.roles import ROLES

# Of one role: factors on its LR, on its init std, and on what the model computes with it in the forward pass.
MULTIPLIERS = ("lr_mult", "init_mult", "forward_mult")


@dataclass(frozen=True, kw_only=True)
class HPs:
    """Base hyperparameters. `multipliers` holds pairs (`role.lr_mult`, value); those that equal 1 are left out."""

    lr: float
    adamw_lr: float = 0.0  # under Muon, of the tensors that AdamW moves; 0: another optimizer
    init_scale: float = 1.0
    residual_scale: float = 1.0
    weight_decay: float = 0.0
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.95
    momentum: float = 0.0
    router_bias_lr: float = 0.01
    aux_weight: float = 0.0
    z_weight: float = 0.0
    multipliers: tuple[tuple[str, float], ...] = ()

    def get(self, name: str) -> float:
        """Return the HP of this name, e.g. `lr` or `router.lr_mult`."""
        if "." in name:
            return dict(self.multipliers).get(name, 1.0)
        return float(getattr(self, name))

    def with_value(self, name: str, value: float) -> HPs:
        """Return a copy with another value of an HP."""
        return self.with_values({name: value})

    def with_values(self, values: Mapping[str, float]) -> HPs:
        """Return a copy with other values of some HPs. One copy is made, however many they are."""
        changed: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
        if len(changed) < len(values):
            of_roles = {**dict(self.multipliers), **{name: value for name, value in values.items() if "." in name}}
            changed["multipliers"] = tuple(sorted((name, kept) for name, kept in of_roles.items() if kept != 1.0))
        return replace(self, **changed)


SCALARS = tuple(f.name for f in fields(HPs) if f.name != "multipliers")
# Which HPs must be above zero; the others may be zero.
POSITIVE = ("lr", "init_scale", "residual_scale", "eps")
# The exponents of two between which float32, in which trials are trained, holds numbers in full. An HP may also be 0.
LEAST_LOG2, MOST_LOG2 = -126, 127


def check_hp_name(name: str) -> None:
    """Raise HpxferError unless `name` is an HP: a scalar, or a multiplier of a role such as `router.lr_mult`."""
    role, dot, kind = name.partition(".")
    if not dot:
        if name not in SCALARS:
            near = nearest(name, [*SCALARS, *(f"{each}.{mult}" for each in ROLES for mult in MULTIPLIERS)])
            every = f"legal: {', '.join(SCALARS)}, or a multiplier of a role such as router.lr_mult"
            raise HpxferError(f"unknown HP; {near if near.startswith('did') else every}")
    elif role not in ROLES:
        raise HpxferError(f"unknown role {shown(role)}; {nearest(role, ROLES)}")
    elif kind not in MULTIPLIERS:
        raise HpxferError(f"unknown multiplier {shown(kind)}; {nearest(kind, MULTIPLIERS)}")


def check_hp_value(name: str, value: float) -> None:
    """Raise HpxferError unless this value is legal for the HP."""
    if value != value or value in (float("inf"), float("-inf")):
        raise HpxferError(f"{name} must be finite, got {value}")
    if name in POSITIVE and value <= 0:
        raise HpxferError(f"{name} must be > 0, got {value:g}")
    if name in ("beta1", "beta2", "momentum") and not 0 <= value < 1:
        raise HpxferError(f"{name} must be in [0, 1), got {value:g}")
    if value < 0:
        raise HpxferError(f"{name} must be >= 0, got {value:g}")
    if value and not 2.0**LEAST_LOG2 <= value <= 2.0**MOST_LOG2:
        raise HpxferError(f"{name} must be from 2^{LEAST_LOG2} to 2^{MOST_LOG2}, as float32 holds it, got {value:g}")
