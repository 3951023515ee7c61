"""Which networks and which trainings are refused, each with its reason: what must hold, what was got, and a fix.

Rules yield why something is refused, and only the first reason is asked for. So a rule may rely on those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Rational, Real
from typing import Any, get_args

import numpy as np
from pydantic import TypeAdapter, ValidationError

from hpxfer.errors import HpxferError, shown
from hpxfer.host import host_bytes, spell_time
from hpxfer.limit.network import REGIMES, ROLES, Batch, Given, Loss, Network, Regime

# Samples of all updates together. The time grows as the square (I, II) or the cube (III).
MOST_SAMPLES = 1000
MOST_EXPERT_SAMPLES = 4000  # of regime I: times the experts
MOST_SITES = 2**24
MOST_SEEDS = 1000
LEAST_ACTIVE = 4  # sites that stand for active experts
# Beta times the std of router biases, whose average is a quadrature: twice as many nodes have weights that overflow.
MOST_SHARPNESS = 16.0
# Field -> the regimes that read it.
_READ_BY: dict[str, tuple[Regime, ...]] = {
    "num_experts": ("I",),
    "num_active": ("I",),
    "active_share": ("II", "III", "residual"),
    "expert_ratio": ("I", "III", "residual"),
    "expert_width": ("II", "residual"),
    "experts_per_width": ("II", "III", "residual"),
    "depth": ("residual",),
    "router_bias_std": ("I", "residual"),
}
_NETWORK = TypeAdapter(Network)


def refuse(reasons: Iterator[str]) -> None:
    """Raise HpxferError with the first reason, if there is one."""
    if (why := next(reasons, None)) is not None:
        raise HpxferError(why)


def checked(network: Network) -> Network:
    """Return the network with its numbers as Python's own. Raise HpxferError unless its limit is derived."""
    try:
        network = _NETWORK.validate_python(_plain(vars(network)))
    except ValidationError as error:
        found = error.errors()[0]
        place, rule = list(found["loc"]), found["msg"].removeprefix("Input should be ").partition(", got")[0]
        if found["type"] in ("dict_type", "mapping_type") or place[-1] == "[key]":
            place, rule = place[:1], f"a mapping of roles to numbers, of the roles {', '.join(ROLES)}"
        name = ".".join(map(str, reversed(place)))
        raise HpxferError(f"{name}: must be {rule}, got {shown(found['input'])}") from None
    refuse(_of_network(network))
    return network


def _plain(value: Any) -> Any:
    """Return a value with the numbers of numpy and of fractions as Python's own."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    return float(value) if isinstance(value, Rational) and not isinstance(value, int) else value


def _of_network(network: Network) -> Iterator[str]:
    regime, sums_to_one = network.regime, network.gate != "sigmoid"
    where = "in the residual network" if regime == "residual" else f"in regime {regime}"
    for field in fields(network):
        got, readers = getattr(network, field.name), _READ_BY.get(field.name, REGIMES)
        if regime not in readers and got != field.default:
            yield f"{field.name}: read in regime {' or '.join(readers)}, got {shown(got)} {where}; leave it out"
    if sums_to_one != (network.aggregation == "none"):
        legal = "none, as the weights of this gate sum to one" if sums_to_one else "1/K or 1/M"
        yield f"aggregation: must be {legal} with the gate {network.gate}, got {network.aggregation}"
    if regime == "I":
        if network.num_experts is None:
            yield "num_experts: regime I needs the number of its experts, got None"
        elif (network.num_active or 1) > network.num_experts:
            yield f"num_active: must be from 1 to the {network.num_experts} experts, got {network.num_active}"
        return
    if sums_to_one:
        yield (
            f"gate: must be sigmoid {where}, got {network.gate}; with infinitely many experts the limit of a softmax "
            "is derived here for regime I alone"
        )
    if network.expert_matrices == 1:
        why = "what an expert with one matrix gives leaves the D + C directions of the stream"
        why = why if regime == "residual" else "an expert with one matrix has the width of the model"
        yield f"expert_matrices: must be 2 {where}, got 1: {why}"
    yield from _of_residual(network, where) if regime == "residual" else _of_many_experts(network, where)


def _of_many_experts(network: Network, where: str) -> Iterator[str]:
    if network.regime == "II" and network.expert_width is None:
        yield "expert_width: regime II needs N_e, which stays fixed there, got None"
    if network.regime == "III" and network.activation != "linear":
        yield (
            f"activation: must be linear {where}, got {network.activation}: the hidden neurons of an expert would be a "
            "population inside each expert, which is not solved here; the input layer may have any"
        )
    if network.router_bias != "none":
        yield (
            f"router_bias: must be none {where}, got {network.router_bias}: the papers derive its limit for a fixed "
            "number of experts, regime I"
        )
    if network.active_share < 1 and not network.std("router"):
        yield (
            f"active_share: must be 1 {where} where the router starts at zero, got {network.active_share:g}: all "
            "logits are equal, so that top-K has no limit; take router.init_mult above 0"
        )


def _of_residual(network: Network, where: str) -> Iterator[str]:
    if network.parameterization != "mup":
        yield (
            f"parameterization: must be mup {where}, got mssp: where all experts start from one draw (mssp-iii), or W3 "
            "is larger by M^1/2 (mssp-ii), the noise of W3 does not average out, and the stream leaves its D + C "
            "directions"
        )
    if network.input_activation != "linear":
        yield (
            f"input_activation: must be linear {where}, got {network.input_activation}: updates of a nonlinear input "
            "layer take the stream out of its D + C directions into new ones at every step; experts may have any "
            "activation"
        )
    if network.std("router"):
        yield (
            f"router.init_mult: must be 0 {where}, got {network.std('router'):g}: a router that starts at random adds "
            "noise to the gradient of the stream, unless there are far more experts than the width"
        )
    if network.router_bias == "schedule":
        yield (
            f"router_bias: must be none, fixed or learned {where}, got schedule: an expert would remember the biases "
            "of all passes"
        )
    sharpness = network.inverse_temperature * network.router_bias_std
    if network.router_bias != "none" and network.active_share == 1 and sharpness > MOST_SHARPNESS:
        yield (
            f"router_bias_std: times inverse_temperature it must be at most {MOST_SHARPNESS:g} {where}, got "
            f"{sharpness:g}: gates are steps there; take a smaller std"
        )
    if network.active_share < 1 and (network.router_bias == "none" or not network.router_bias_std):
        yield (
            f"active_share: must be 1 {where} without a router bias, got {network.active_share:g}: the router starts "
            "at zero, so that all logits are equal and top-K has no limit; give router_bias: fixed"
        )


def of_given(network: Network, given: Given) -> Iterator[str]:
    """Yield why the training that is to be solved is not whole."""
    batches, lrs = given.batches, given.lrs
    if given.loss not in get_args(Loss):
        yield f"loss: must be {' or '.join(get_args(Loss))}, got {shown(given.loss)}"
    if not isinstance(batches, Sequence) or not batches or not all(isinstance(each, Batch) for each in batches):
        yield f"batches: must be a sequence of Batch, at least one, got {shown(batches)}"
    if not isinstance(lrs, (Sequence, np.ndarray)) or len(lrs) != len(batches) - 1:
        got = len(lrs) if isinstance(lrs, (Sequence, np.ndarray)) else shown(lrs)
        yield f"lrs: must be a sequence of numbers, one fewer than the {len(batches)} passes, got {got}"
    if wrong := [lr for lr in lrs if not (isinstance(lr, Real) and 0 <= lr < np.inf)]:
        yield f"lr: must be a finite number of at least 0, got {shown(wrong[0])}"
    if given.loss == "cross_entropy" and not (isinstance(given.num_classes, Integral) and given.num_classes >= 2):
        yield f"num_classes: must be at least 2 under cross entropy, got {shown(given.num_classes)}"
    for at, batch in enumerate(batches):
        yield from (f"{f'pass {at}' if at else 'samples'}: {why}" for why in _of_batch(batch, given))
    yield from _of_bias(network, given)
    if given.active is not None:
        if [mask.shape for mask in given.active] != [(len(batch.inputs), network.num_experts) for batch in batches]:
            yield f"active: must be one mask per pass, [samples, experts], got {len(given.active)} masks"
        if any((mask.sum(axis=1) != network.num_active).any() for mask in given.active):
            yield f"active: each sample must have {network.num_active} active experts"


def _of_batch(batch: Batch, given: Given) -> Iterator[str]:
    x, y, first = batch.inputs, batch.targets, given.batches[0]
    if x.ndim != 2 or not x.size:
        yield f"inputs must be [samples, features], got shape {list(x.shape)}"
    if len(x) != len(y):
        yield f"inputs and targets must be as many, got {len(x)} inputs and {len(y)} targets"
    if x.shape[1] != first.inputs.shape[1] or y.shape[1:] != first.targets.shape[1:]:
        yield f"samples of all passes must have the same sizes, got {list(x.shape)}, {list(y.shape)}"
    for name, numbers in (("inputs", x), ("targets", y)):
        for place in np.argwhere(~np.isfinite(numbers)).tolist():
            yield f"{name} must be finite, got {numbers[tuple(place)]} at {place}"
    if given.loss == "squared_error":
        if y.ndim != 2 or not y.shape[1]:
            yield f"targets of a squared error must be real numbers [samples, outputs], got {list(y.shape)}"
    elif y.ndim != 1 or y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= given.num_classes:
        yield (
            f"targets of a cross entropy must be classes from 0 to {given.num_classes - 1}, got {y.dtype} "
            f"{list(y.shape)} with values from {y.min():g} to {y.max():g}"
        )


def _of_bias(network: Network, given: Given) -> Iterator[str]:
    """Yield why the router biases of regime I are not those that the network has."""
    bias, kind = given.router_bias, network.router_bias
    if network.regime != "I" or kind == "none":
        if bias is not None and (network.regime != "I" or np.any(bias)):
            yield (
                f"router_bias: must be left out in regime {network.regime} with router_bias {kind}, got biases; they "
                "go with router_bias fixed, schedule or learned of regime I"
            )
        return
    rows = 1 if kind == "learned" else len(given.batches)
    legal = f"an array of numbers [{rows} passes, {network.num_experts} experts]"
    if not isinstance(bias, np.ndarray) or bias.dtype.kind not in "fiu":
        yield f"router_bias: must be {legal}, as the network has {kind}, got {shown(bias)}"
        return
    if bias.ndim != 2 or bias.shape[1] != network.num_experts or len(bias) < rows:
        yield f"router_bias: must be {legal}, got shape {list(bias.shape)}"
    for place in np.argwhere(~np.isfinite(bias)).tolist():
        yield f"router_bias: must be finite, got {bias[tuple(place)]} at {place}"
    if kind == "fixed" and (bias[:rows] != bias[0]).any():
        yield "router_bias: fixed ones must be the same at every pass, got rows that differ; see schedule"
    if (count := network.num_active or 0) and count < bias.shape[1] and given.active is None:
        last, following = np.sort(bias[0])[::-1][count - 1 : count + 1] + 0.0
        if last == following:
            yield (
                f"router_bias: must tell the {count} active experts from the others, got two of {last:g} at the "
                "first pass, where logits are the biases: a tie is a draw at every width; take other biases"
            )


def of_sites(network: Network, sites: int, seeds: int) -> Iterator[str]:
    """Yield why a limit cannot be sampled so."""
    if not isinstance(sites, Integral) or not 16 <= sites <= MOST_SITES or sites & (sites - 1):
        yield (
            f"sites: must be a power of two from 16 to {MOST_SITES}, as a Sobol sequence is balanced there, got "
            f"{shown(sites)}"
        )
    if not isinstance(seeds, Integral) or not 1 <= seeds <= MOST_SEEDS:
        yield f"seeds: must be from 1 to {MOST_SEEDS}, got {shown(seeds)}"
    if network.regime in ("II", "III") and network.active_share * sites < LEAST_ACTIVE:
        yield (
            f"sites: at least {LEAST_ACTIVE} must stand for active experts, which are {network.active_share:g} of all, "
            f"got {sites} sites; take more sites, or more active experts"
        )


def of_size(network: Network, given: Given, seconds: float, sites: int, needed_bytes: float) -> Iterator[str]:
    """Yield why a limit would take hours, or more memory than there is."""
    samples, room = updated_samples(given), host_bytes()
    takes = f"takes about {spell_time(seconds)} per seed on one core"
    if network.regime == "I" and (got := (network.num_experts or 1) * samples) > MOST_EXPERT_SAMPLES:
        yield (
            f"m T P: experts times updates times samples must be at most {MOST_EXPERT_SAMPLES}, got {got}, which "
            f"{takes} and grows as the square of that; take fewer steps or samples"
        )
    if network.regime in ("II", "III") and samples > MOST_SAMPLES:
        power = "square" if network.regime == "II" else "cube"
        yield (
            f"T P: updates times samples must be at most {MOST_SAMPLES}, got {samples}, which {takes} and grows as the "
            f"{power} of that; take fewer steps or samples"
        )
    if room is not None and needed_bytes > room:
        yield (
            f"sites: {sites} sites with {given.num_samples} samples over all passes need about "
            f"{needed_bytes / 2**30:.3g} GiB, got {room / 2**30:.3g} GiB of memory; take fewer sites, steps or samples"
        )


# About how long a solution takes, measured on one core of an AMD EPYC with numpy 2.4 (2026-11). Letters: T updates, P
# samples of a batch, m experts, L blocks.
#
# Seconds of regime I per (m T P)^2 and, where it is sampled, per site too. Of II per site, (1 + N_e) and (T P)^2. Of
# III per site and (T P)^3. Of the residual network per site, block and sample of a pass.
I_S, I_SAMPLED_S, II_S, III_S, RESIDUAL_S = 8e-8, 1e-9, 2.6e-9, 7e-10, 1e-7
GAUSSIAN_S = 2e-7  # per Gaussian of a site, which is drawn and made orthogonal to the others


def seconds(network: Network, given: Given, sites: int, gaussians: int) -> float:
    """Return about how long one seed takes, where a site of every population has `gaussians` in all."""
    samples = updated_samples(given)
    match network.regime:
        case "I":
            each = I_S if network.is_linear else I_SAMPLED_S * sites
            updates = each * ((network.num_experts or 1) * samples) ** 2
        case "II":
            updates = II_S * sites * (1 + (network.expert_width or 1)) * samples**2
        case "III":
            updates = III_S * sites * samples**3
        case "residual":
            updates = RESIDUAL_S * sites * network.depth * given.num_samples
    return updates + GAUSSIAN_S * sites * gaussians


def updated_samples(given: Given) -> int:
    """Return T P: the samples of all passes that an update follows."""
    return given.num_samples - len(given.batches[-1].inputs)
