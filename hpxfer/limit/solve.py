"""solve: the limit of a network's training, with the error of the solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from hpxfer.errors import HpxferError
from hpxfer.limit import fixed_experts, many_experts, residual
from hpxfer.limit.layers import SERIES, Pass, loss
from hpxfer.limit.network import Floats, Given, Network, Regime
from hpxfer.limit.refused import LEAST_ACTIVE, MOST_SITES, checked, of_given, of_sites, of_size, refuse, seconds
from hpxfer.limit.selection import draw, first_features, selection
from hpxfer.limit.solved import Limit, Series

# By default. A site of regime III holds a vector per sample, so that its memory grows as the square of T P.
SITES: dict[Regime, int] = {"I": 32768, "II": 32768, "III": 2048, "residual": 32768}
SEEDS = 4
# Losses that differ by less than this share are equal.
_ROUNDING = 1e-6
# Outputs that are no larger than the largest target have at most this many times its squared error with outputs zero.
_GROWN = 4.0
# A network of width 1000 has logits that fluctuate by about 0.03.
LEAST_MARGIN = 0.1


class Solver(Protocol):
    """What the module of a regime has."""

    def passes(self, network: Network, given: Given, *, sites: int, seed: int) -> list[Pass]: ...

    def bytes_needed(self, network: Network, given: Given, sites: int) -> float: ...

    def gaussians(self, network: Network, given: Given) -> int: ...


SOLVERS: dict[Regime, Solver] = {"I": fixed_experts, "II": many_experts, "III": many_experts, "residual": residual}


def solve(
    network: Network,
    given: Given,
    *,
    sites: int | None = None,
    seeds: int = SEEDS,
    on_start: Callable[[float], None] = lambda seconds: None,
) -> Limit:
    """Return the limit: the mean over `seeds` solutions, each with draws of its own, and the error of that mean.

    `sites` is the size of every sampled population, by default that of the regime (`SITES`), or more where a residual
    stream of many directions or a small share of active experts needs it. Where nothing is sampled, one seed is solved.
    `on_start` is called with about how many seconds the solution takes on one core, once nothing of it is refused.

    Raise HpxferError if the limit of this network is not derived or not affordable, or if its losses grow.
    """
    network = checked(network)
    refuse(of_given(network, given))
    solver = SOLVERS[network.regime]
    sites = _default_sites(network, given) if sites is None else sites
    refuse(of_sites(network, sites, seeds))
    takes_s = seconds(network, given, sites, solver.gaussians(network, given))
    refuse(of_size(network, given, takes_s, sites, solver.bytes_needed(network, given, sites)))
    chosen = _draws_masks(network, given)
    first = first_features(network, given) if chosen else ()
    exact = network.regime == "I" and network.is_linear  # elsewhere gates of infinitely many experts
    runs: list[list[Pass]] = []
    of_seeds = range(1 if exact and not chosen else seeds)
    on_start(len(of_seeds) * takes_s)
    for seed in of_seeds:
        of_seed = replace(given, active=draw(first, *chosen, seed)) if chosen else given
        with np.errstate(over="ignore", invalid="ignore"):  # losses that grow without bound are refused below
            runs.append(solver.passes(network, of_seed, sites=sites, seed=seed))
    losses = np.mean([[each.numbers["loss"] for each in run] for run in runs], axis=0)
    refuse(_of_runs(given, runs, losses))
    sampled = bool(chosen) or not exact
    outputs = [np.array([each.outputs for each in at]) for at in zip(*runs, strict=True)]
    return Limit(
        network=network,
        given=given,
        series={name: _series([[each.numbers[name] for each in run] for run in runs], sampled) for name in SERIES},
        outputs=tuple(each.mean(axis=0) for each in outputs),
        output_errors=None
        if sampled and len(runs) < 2
        else tuple(each for of_pass in outputs if (each := _error(of_pass, sampled)) is not None),
        margins=_margins(runs),
        is_exact=exact,
        num_sites=0 if exact else sites,
        num_seeds=len(runs),
        selection=selection(first[0], *chosen) if chosen else None,
        cautions=tuple(_cautions(given, runs, losses, bool(chosen), _ROUNDING if exact else sites**-0.5)),
    )


def _default_sites(network: Network, given: Given) -> int:
    sites = SITES[network.regime]
    if network.regime == "residual":
        return min(residual.sites_needed(network, given, sites), MOST_SITES)
    while network.active_share * sites < LEAST_ACTIVE and sites < MOST_SITES:
        sites *= 2
    return sites


def _draws_masks(network: Network, given: Given) -> tuple[int, int] | None:
    """Return (experts, active experts) where top-K of regime I has no bias, so that it is a draw. None elsewhere."""
    m, k = network.num_experts, network.num_active
    if network.regime != "I" or m is None or k is None or k == m:
        return None
    if given.active is not None or given.router_bias is not None:
        return None
    if network.parameterization == "mssp" or not network.std("router"):
        raise HpxferError(
            f"num_active: must be the {m} experts where the router starts at zero without a bias, got {k}: all logits "
            "are equal, and the rule for ties chooses at every width; give a router bias"
        )
    return m, k


def _series(values: Sequence[Sequence[float]], sampled: bool) -> Series:
    numbers = np.array(values)  # [seeds, passes]
    return Series(mean=numbers.mean(axis=0), error=_error(numbers, sampled))


def _error(numbers: Floats, sampled: bool) -> Floats | None:
    """Return the standard error of the mean over seeds, the first axis."""
    if not sampled:
        return np.zeros(numbers.shape[1:])
    return None if len(numbers) < 2 else numbers.std(axis=0, ddof=1) / np.sqrt(len(numbers))


def _margins(runs: Sequence[Sequence[Pass]]) -> tuple[float, ...] | None:
    """Return the least margin over seeds of every pass."""
    found = [[each.margin for each in run if each.margin is not None] for run in runs]
    return tuple(map(min, zip(*found, strict=True))) if found[0] else None


def _of_runs(given: Given, runs: Sequence[Sequence[Pass]], losses: Floats) -> Iterator[str]:
    """Yield why solutions are no guide: numbers that overflow, or losses [passes] that grow.

    Where losses grow, finite networks follow their limit for few steps. Other samples have other losses. So the last
    loss of changing batches is compared with the largest that any of them has where outputs are zero, as they are
    before training.
    """
    overflows = [
        (at, name, value)
        for run in runs
        for at, each in enumerate(run)
        for name, value in each.numbers.items()
        if not np.isfinite(value)
    ]
    if at_start := [f"{name} {value}" for at, name, value in overflows if not at]:  # so that no LR is at fault
        yield (
            f"samples: all numbers must be finite before training, got {at_start[0]}; scale inputs and targets to "
            "about 1, or take smaller init multipliers"
        )
    distinct = {id(each): each.targets for each in given.batches}.values()
    first = max(loss(given.loss, np.zeros((len(y), given.num_outputs)), y) for y in distinct)
    wrong = ~np.isfinite(losses)
    wrong[-1:] |= losses[-1:] > (losses[0] * (1 + _ROUNDING) if _repeats(given) else _GROWN * first)
    for at in np.flatnonzero(wrong).tolist():
        yield (
            f"lr: the loss must fall, got {losses[0]:.4g} before training and {losses[at]:.4g} after {at} updates; the "
            "LR is beyond the edge of stability, where finite networks leave the limit after a few updates, so that it "
            "is no guide; take a smaller lr"
        )
    for at, name, value in overflows:
        yield f"lr: all numbers must stay finite, got {name} {value} after {at} updates; take a smaller lr"


def _cautions(given: Given, runs: Sequence[Sequence[Pass]], losses: Floats, drawn: bool, noise: float) -> Iterator[str]:
    """Yield where the limit is less of a guide. `noise` is what the solver may add to a logit."""
    rises = np.flatnonzero(np.diff(losses) > _ROUNDING * losses[:-1])
    if _repeats(given) and len(rises):
        yield (
            f"the loss rises at update {rises[0] + 1}: near the edge of stability finite networks leave the limit "
            "after such updates"
        )
    margins = _margins(runs) or ()
    if drawn:
        yield (
            "top-K without a router bias has no limit: these are networks whose samples keep the experts that they "
            "drew, and their mean over draws; free networks draw again after update 1, as all logits are equal until "
            "update 2"
        )
    if drawn and min(margins) < -noise:
        yield (
            f"from update {int(np.argmax(np.array(margins) < -noise))} on logits of active experts fall below "
            "others: a network that chooses by its logits takes other experts there"
        )
    elif not drawn and margins and min(margins) < LEAST_MARGIN:
        yield (
            f"the margin of top-K falls below {LEAST_MARGIN:g}: a network whose logits are that close to a tie chooses "
            "by its fluctuations, of size N^-1/2, and not as the limit does"
        )


def _repeats(given: Given) -> bool:
    """Return whether every pass has the same samples and the same bias of the router."""
    first, bias = given.batches[0], given.router_bias
    if bias is not None and not np.array_equal(bias, np.broadcast_to(bias[0], bias.shape)):
        return False
    return all(
        each is first or (np.array_equal(each.inputs, first.inputs) and np.array_equal(each.targets, first.targets))
        for each in given.batches
    )
