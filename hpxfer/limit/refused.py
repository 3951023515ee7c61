"""Which networks and which trainings are refused, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np

from hpxfer.errors import HpxferError, shown
from hpxfer.host import host_bytes, spell_time
from hpxfer.limit import cost
from hpxfer.limit import network as words
from hpxfer.limit.given import Batch, Given, Loss
from hpxfer.limit.network import ROLES, Network

# Which trainings are refused, each with its reason: those that are not whole, and those too large to solve.
#
# Every function returns if its rules hold, and raises HpxferError with rule, value and fix if one does not.

# Samples of all updates together. The time grows as the square (I, II) or the cube (III).
MOST_SAMPLES = 1000
MOST_EXPERT_SAMPLES = 4000  # of regime I: times the experts
MOST_SITES = 2**24
MOST_SEEDS = 1000
LEAST_ACTIVE = 4  # sites that stand for active experts


def require_given(network: Network, given: Given) -> None:
    """Raise HpxferError unless the training that is to be solved is whole."""
    if given.loss not in get_args(Loss):
        raise HpxferError(f"loss: must be {' or '.join(get_args(Loss))}, got {shown(given.loss)}")
    if not isinstance(given.batches, Sequence) or not all(isinstance(each, Batch) for each in given.batches):
        raise HpxferError(f"batches: must be a sequence of Batch, got {shown(given.batches)}")
    if not given.batches:
        raise HpxferError("batches: there must be at least one, got none")
    if not isinstance(given.lrs, (Sequence, np.ndarray)):
        raise HpxferError(f"lrs: must be a sequence of numbers, one per update, got {shown(given.lrs)}")
    if given.loss == "cross_entropy" and not (isinstance(given.num_classes, Integral) and given.num_classes >= 2):
        raise HpxferError(f"num_classes: must be at least 2 under cross entropy, got {shown(given.num_classes)}")
    if len(given.lrs) != len(given.batches) - 1:
        raise HpxferError(
            f"lrs: must be one fewer than the {len(given.batches)} passes, with an update between two, got "
            f"{len(given.lrs)}"
        )
    if wrong := [lr for lr in given.lrs if not (is_finite(lr) and lr >= 0)]:
        raise HpxferError(f"lr: must be a finite number of at least 0, got {shown(wrong[0])}")
    first = given.batches[0]
    for at, batch in enumerate(given.batches):
        _require_batch(f"pass {at}" if at else "samples", batch, first, given)
    _require_bias(network, given)
    if given.active is not None:
        shapes = [(len(batch.inputs), network.num_experts) for batch in given.batches]
        if [mask.shape for mask in given.active] != shapes:
            raise HpxferError(f"active: must be one mask per pass, [samples, experts], got {len(given.active)} masks")
        if any((mask.sum(axis=1) != network.num_active).any() for mask in given.active):
            raise HpxferError(f"active: each sample must have {network.num_active} active experts")


def _require_bias(network: Network, given: Given) -> None:
    """Raise HpxferError unless the router biases of regime I are those that the network has."""
    bias, kind = given.router_bias, network.router_bias
    if network.regime != "I" or kind == "none":
        if bias is not None and (network.regime != "I" or np.any(bias)):
            raise HpxferError(
                f"router_bias: must be left out in regime {network.regime} with router_bias {kind}, got biases; they "
                "go with router_bias fixed, schedule or learned of regime I"
            )
        return
    rows = 1 if kind == "learned" else len(given.batches)
    legal = f"numbers [{rows} passes, {network.num_experts} experts]"
    if not isinstance(bias, np.ndarray) or bias.dtype.kind not in "fiu":
        raise HpxferError(f"router_bias: must be an array of {legal}, as the network has {kind}, got {shown(bias)}")
    if bias.ndim != 2 or bias.shape[1] != network.num_experts or len(bias) < rows:
        raise HpxferError(f"router_bias: must be {legal}, got shape {list(bias.shape)}")
    if not np.isfinite(bias).all():
        place = np.argwhere(~np.isfinite(bias))[0].tolist()
        raise HpxferError(f"router_bias: must be finite, got {bias[tuple(place)]} at {place}")
    if kind == "fixed" and (bias[:rows] != bias[0]).any():
        raise HpxferError("router_bias: fixed ones must be the same at every pass, got rows that differ; see schedule")
    if (count := network.num_active or 0) and count < bias.shape[1] and given.active is None:
        last, following = np.sort(bias[0])[::-1][count - 1 : count + 1] + 0.0
        if last == following:
            raise HpxferError(
                f"router_bias: must tell the {count} active experts from the others, got two of {last:g} at the "
                "first pass, where logits are the biases: a tie is a draw at every width; take other biases"
            )


def _require_batch(where: str, batch: Batch, first: Batch, given: Given) -> None:
    x, y = batch.inputs, batch.targets
    if x.ndim != 2 or not x.size:
        raise HpxferError(f"{where}: inputs must be [samples, features], got shape {list(x.shape)}")
    if len(x) != len(y):
        raise HpxferError(f"{where}: inputs and targets must be as many, got {len(x)} inputs and {len(y)} targets")
    if x.shape[1] != first.inputs.shape[1] or y.shape[1:] != first.targets.shape[1:]:
        raise HpxferError(
            f"{where}: samples of all passes must have the same sizes, got {list(x.shape)}, {list(y.shape)}"
        )
    for name, numbers in (("inputs", x), ("targets", y)):
        if not np.isfinite(numbers).all():
            place = np.argwhere(~np.isfinite(numbers))[0].tolist()
            raise HpxferError(f"{where}: {name} must be finite, got {numbers[tuple(place)]} at {place}")
    if given.loss == "squared_error":
        if y.ndim != 2 or not y.shape[1]:
            raise HpxferError(
                f"{where}: targets of a squared error must be real numbers [samples, outputs], got {list(y.shape)}"
            )
    elif y.ndim != 1 or y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= given.num_classes:
        raise HpxferError(
            f"{where}: targets of a cross entropy must be classes from 0 to {given.num_classes - 1}, got {y.dtype} "
            f"{list(y.shape)} with values from {y.min():g} to {y.max():g}"
        )


def require_sites(network: Network, *, sites: int, seeds: int) -> None:
    """Raise HpxferError unless a limit can be sampled so."""
    if not isinstance(sites, Integral) or not 16 <= sites <= MOST_SITES or sites & (sites - 1):
        raise HpxferError(
            f"sites: must be a power of two from 16 to {MOST_SITES}, as a Sobol sequence is balanced there, got "
            f"{shown(sites)}"
        )
    if not isinstance(seeds, Integral) or not 1 <= seeds <= MOST_SEEDS:
        raise HpxferError(f"seeds: must be from 1 to {MOST_SEEDS}, got {shown(seeds)}")
    if network.regime in ("II", "III") and network.active_share * sites < LEAST_ACTIVE:
        raise HpxferError(
            f"sites: at least {LEAST_ACTIVE} must stand for active experts, which are {network.active_share:g} of all, "
            f"got {sites} sites; take more sites, or more active experts"
        )


def require_size(network: Network, given: Given, *, seconds: float, sites: int, needed_bytes: float) -> None:
    """Raise HpxferError if a limit would take hours, or more memory than there is."""
    samples = cost.updated_samples(given)
    takes = f"takes about {spell_time(seconds)} per seed on one core"
    if network.regime == "I" and (got := (network.num_experts or 1) * samples) > MOST_EXPERT_SAMPLES:
        raise HpxferError(
            f"m T P: experts times updates times samples must be at most {MOST_EXPERT_SAMPLES}, got {got}, which "
            f"{takes} and grows as the square of that; take fewer steps or samples"
        )
    if network.regime in ("II", "III") and samples > MOST_SAMPLES:
        power = "square" if network.regime == "II" else "cube"
        raise HpxferError(
            f"T P: updates times samples must be at most {MOST_SAMPLES}, got {samples}, which {takes} and grows as the "
            f"{power} of that; take fewer steps or samples"
        )
    room = host_bytes()
    if room is not None and needed_bytes > room:
        raise HpxferError(
            f"sites: {sites} sites with {given.num_samples} samples over all passes need about "
            f"{needed_bytes / 2**30:.3g} GiB, got {room / 2**30:.3g} GiB of memory; take fewer sites, steps or samples"
        )


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
