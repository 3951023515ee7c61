"""Which networks are refused, each with its reason: those whose limit is not derived, or does not exist."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, get_args

from hpxfer.errors import HpxferError, shown
from hpxfer.limit import network as words
from hpxfer.limit.network import ROLES, Network

_WORDS: dict[str, tuple[Any, ...]] = {
    "regime": words.REGIMES,
    "parameterization": get_args(words.Style),
    "gate": get_args(words.Gate),
    "activation": get_args(words.Activation),
    "input_activation": get_args(words.Activation),
    "aggregation": get_args(words.Aggregation),
    "router_bias": get_args(words.RouterBias),
    "expert_matrices": (1, 2),
}
# Field -> the regimes that read it.
_READ_BY: dict[str, tuple[words.Regime, ...]] = {
    "num_experts": ("I",),
    "num_active": ("I",),
    "active_share": ("II", "III", "residual"),
    "expert_ratio": ("I", "III", "residual"),
    "expert_width": ("II", "residual"),
    "experts_per_width": ("II", "III", "residual"),
    "depth": ("residual",),
    "router_bias_std": ("I", "residual"),
}
# Beta times the std of router biases, whose average is a quadrature: twice as many nodes have weights that overflow.
MOST_SHARPNESS = 16.0


def require_network(network: Network) -> None:
    """Raise HpxferError unless the limit of the network is derived."""
    _require_numbers(network)
    for field in fields(network):
        if (
            network.regime not in _READ_BY.get(field.name, words.REGIMES)
            and getattr(network, field.name) != field.default
        ):
            raise HpxferError(
                f"{field.name}: read in regime {' or '.join(_READ_BY[field.name])}, got "
                f"{shown(getattr(network, field.name))} in regime {network.regime}; leave it out"
            )
    sums_to_one = network.gate != "sigmoid"
    if sums_to_one != (network.aggregation == "none"):
        legal = "none, as the weights of this gate sum to one" if sums_to_one else "1/K or 1/M"
        raise HpxferError(f"aggregation: must be {legal} with the gate {network.gate}, got {network.aggregation}")
    if network.regime == "I":
        _require_fixed_experts(network)
    elif sums_to_one:
        raise HpxferError(
            f"gate: must be sigmoid in regime {network.regime}, got {network.gate}; with infinitely many experts the "
            "limit of a softmax is derived here for regime I alone"
        )
    elif network.regime == "residual":
        _require_residual(network)
    else:
        _require_many_experts(network)


def _require_numbers(network: Network) -> None:
    for name, legal in _WORDS.items():
        if (value := getattr(network, name)) not in legal:
            raise HpxferError(f"{name}: must be {' or '.join(map(str, legal))}, got {shown(value)}")
    for name in ("expert_ratio", "experts_per_width", "inverse_temperature"):
        if not (is_finite(value := getattr(network, name)) and value > 0):
            raise HpxferError(f"{name}: must be a number above 0, got {shown(value)}")
    for name in ("num_experts", "num_active", "expert_width", "depth"):
        if not (isinstance(value := getattr(network, name), Integral) or value is None):
            raise HpxferError(f"{name}: must be a whole number, got {shown(value)}")
    if not (is_finite(network.router_bias_std) and network.router_bias_std >= 0):
        raise HpxferError(
            f"router_bias_std: must be a finite number of at least 0, got {shown(network.router_bias_std)}"
        )
    if not (is_finite(network.active_share) and 0 < network.active_share <= 1):
        raise HpxferError(f"active_share: K/M must be above 0 and at most 1, got {shown(network.active_share)}")
    for what, given in (("init_mult", network.init_mult), ("lr_mult", network.lr_mult)):
        if not isinstance(given, Mapping):
            raise HpxferError(f"{what}: must map roles to numbers, got {shown(given)}")
        for role, value in given.items():
            if role not in ROLES:
                raise HpxferError(f"{role}.{what}: unknown role; legal: {', '.join(ROLES)}")
            if not (is_finite(value) and value >= 0):
                raise HpxferError(f"{role}.{what}: must be a finite number of at least 0, got {shown(value)}")


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite real number."""
    return isinstance(value, Real) and math.isfinite(value)


def _require_fixed_experts(network: Network) -> None:
    m, k = network.num_experts, network.num_active
    if m is None or m < 1:
        raise HpxferError(f"num_experts: regime I needs the number of its experts, got {shown(m)}")
    if k is not None and not 1 <= k <= m:
        raise HpxferError(f"num_active: must be from 1 to the {m} experts, got {shown(k)}")


def _require_many_experts(network: Network) -> None:
    where = f"in regime {network.regime}"
    if network.regime == "II" and (network.expert_width is None or network.expert_width < 1):
        raise HpxferError(
            f"expert_width: regime II needs N_e, which stays fixed there, got {shown(network.expert_width)}"
        )
    if network.regime == "III" and network.activation != "linear":
        raise HpxferError(
            f"activation: must be linear {where}, got {network.activation}: the hidden neurons of an expert would be a "
            "population inside each expert, which is not solved here; the input layer may have any"
        )
    if network.expert_matrices == 1:
        raise HpxferError(
            f"expert_matrices: must be 2 {where}, got 1: an expert with one matrix has the width of the model"
        )
    if network.router_bias != "none":
        raise HpxferError(
            f"router_bias: must be none {where}, got {network.router_bias}: the papers derive its limit for a fixed "
            "number of experts, regime I"
        )
    if network.active_share < 1 and not network.std("router"):
        raise HpxferError(
            f"active_share: must be 1 {where} where the router starts at zero, got {network.active_share:g}: all "
            "logits are equal, so that top-K has no limit; take router.init_mult above 0"
        )


def _require_residual(network: Network) -> None:
    if network.depth < 1:
        raise HpxferError(f"depth: must be at least 1, got {shown(network.depth)}")
    if network.expert_width is not None and network.expert_width < 1:
        raise HpxferError(f"expert_width: must be at least 1, got {shown(network.expert_width)}")
    where = "in the residual network"
    if network.parameterization != "mup":
        raise HpxferError(
            f"parameterization: must be mup {where}, got mssp: where all experts start from one draw (mssp-iii), or W3 "
            "is larger by M^1/2 (mssp-ii), the noise of W3 does not average out, and the stream leaves its D + C "
            "directions"
        )
    if network.input_activation != "linear":
        raise HpxferError(
            f"input_activation: must be linear {where}, got {network.input_activation}: updates of a nonlinear input "
            "layer take the stream out of its D + C directions, into new ones at every step; experts may have any "
            "activation"
        )
    if network.expert_matrices == 1:
        raise HpxferError(
            f"expert_matrices: must be 2 {where}, got 1: what an expert with one matrix gives leaves the D + C "
            "directions of the stream"
        )
    if network.std("router"):
        raise HpxferError(
            f"router.init_mult: must be 0 {where}, got {network.std('router'):g}: a router that starts at random adds "
            "noise to the gradient of the stream, unless there are far more experts than the width"
        )
    if network.router_bias == "schedule":
        raise HpxferError(
            f"router_bias: must be none, fixed or learned {where}, got schedule: an expert would remember the biases "
            "of all passes"
        )
    sharpness = network.inverse_temperature * network.router_bias_std
    if network.router_bias != "none" and network.active_share == 1 and sharpness > MOST_SHARPNESS:
        raise HpxferError(
            f"router_bias_std: times inverse_temperature it must be at most {MOST_SHARPNESS:g} {where}, got "
            f"{sharpness:g}: gates are steps there; take a smaller std"
        )
    if network.active_share < 1 and (network.router_bias == "none" or not network.router_bias_std):
        raise HpxferError(
            f"active_share: must be 1 {where} without a router bias, got {network.active_share:g}: the router starts "
            "at zero, so that all logits are equal and top-K has no limit; give router_bias: fixed"
        )
