"""against: a sweep of the family `mlp` beside the limits of its arms and seeds. Nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hpxfer.analysis import analyze
from hpxfer.data import open_data
from hpxfer.errors import HpxferError
from hpxfer.limit.network import Floats, Network
from hpxfer.limit.refused import MOST_EXPERT_SAMPLES, MOST_SAMPLES
from hpxfer.limit.solve import LEAST_MARGIN, solve
from hpxfer.limit.sweep.lines import LOSS_CURVE, SPREAD_CURVE, Line, curve_of, held_out_of, lines_of
from hpxfer.limit.sweep.of_trials import network_of
from hpxfer.limit.sweep.report import Against, Comparisons, Quantity
from hpxfer.limit.sweep.seen import SeedLimits, Seen, batch_of, seen_by
from hpxfer.limit.sweep.statistics import Deviations
from hpxfer.results import Results
from hpxfer.trial import Trial

# An error that is estimated from few draws is itself uncertain. With 8 planted networks are accused as seldom as ALPHA
# says, also where the solver's error is the larger one. With 4 they are ten times as often.
SEEDS = 8
# The share of the limit's loss within which a width counts as large enough.
TOLERANCE = 0.05
# Held-out samples are solved along if they are at most so many batches.
MOST_HELD_OUT = 2


def against(
    results: Results,
    *,
    axis: str | None = None,
    arm: str | None = None,
    value: float | None = None,
    steps: int | None = None,
    sites: int | None = None,
    seeds: int = SEEDS,
    tolerance: float = TOLERANCE,
    on_limit: Callable[[str, float], None] = lambda name, seconds: None,
) -> Comparisons:
    """Return each arm of a sweep along each axis beside its limit, or those that are named.

    `value` is that of the judged HP, by default the best one of the smallest shape. `steps` are the updates that are
    compared, by default all of the run. `sites` and `seeds` are as in `solve`, and `tolerance` is the share of the
    limit's loss within which a width is large enough. `on_limit` is called with the name of each limit before it is
    solved, and with about how many seconds that takes on one core.

    Raise HpxferError if an arm has no limit that is solved, if its samples are not on this machine, or if fewer than
    two seeds finished at every width.
    """
    if seeds < 2:
        raise HpxferError(f"seeds: must be at least 2, as one draw shows no error of the limit, got {seeds}")
    if not 0 < tolerance < 1:
        raise HpxferError(f"tolerance: must be a share between 0 and 1, got {tolerance:g}")
    lines = lines_of(results, axis=axis, arm=arm, value=value)
    # All are refused before one is solved, which may take minutes.
    ready = [(line, network_of(line.of_widths(), _where(results, line))) for line in lines]
    plans = [(line, network, _updates(results, line, network, steps)) for line, network in ready]
    arms = tuple(
        _compared(results, line, network, updates, sites, seeds, tolerance, on_limit)
        for line, network, updates in plans
    )
    return Comparisons(sweep=results.name, arms=arms)


def _where(results: Results, line: Line) -> str:
    return f"{results.folder}: {line.parameterization} along {line.axis}"


def _updates(results: Results, line: Line, network: Network, steps: int | None) -> int:
    """Return how many updates are solved. Raise HpxferError if they are too many, or the seeds too few."""
    where, trial = _where(results, line), line.of_widths()[0]
    whole, batch = trial.shape.steps, trial.shape.batch_tokens
    if steps is not None and not 1 <= steps <= whole:
        raise HpxferError(f"{where}: steps must be from 1 to the {whole} of the sweep, got {steps}")
    if len(line.seeds) < 2:
        got = f"{len(line.seeds)}" + "".join(f"; {each}" for each in line.left_out())
        raise HpxferError(f"{where}: at least 2 seeds must have finished at every width, got {got}; run more seeds")
    updates = steps or whole
    if updates == whole and trial.setting.validation_tokens > MOST_HELD_OUT * batch:
        updates -= 1  # the loss after the last update is of held-out samples alone
    if not updates:
        raise HpxferError(f"{where}: the loss must be known after an update, got a sweep of 1 step; take more steps")
    experts = network.num_experts or 1 if network.regime == "I" else 1
    most = {"I": MOST_EXPERT_SAMPLES // experts, "II": MOST_SAMPLES, "III": MOST_SAMPLES, "residual": updates * batch}
    if updates * batch > most[network.regime]:
        cost = "cube" if network.regime == "III" else "square"
        fits = most[network.regime] // batch
        fix = f"compare the first {fits} of them (--steps {fits})" if fits else "take smaller batches"
        raise HpxferError(
            f"{where}: updates times samples must be at most {most[network.regime]} in regime {network.regime}, got "
            f"{updates} updates of {batch} samples, as the time to solve grows as their {cost}; {fix}"
        )
    return updates


def _compared(
    results: Results,
    line: Line,
    network: Network,
    updates: int,
    sites: int | None,
    seeds: int,
    tolerance: float,
    on_limit: Callable[[str, float], None],
) -> Against:
    where, trial, left_out = _where(results, line), line.of_seeds()[0], list(line.left_out())
    groups = seen_by(line.of_seeds(), updates, has_bias=network.regime == "I")
    every = []
    try:
        for number, seen in enumerate(groups, start=1):
            name = f"{line.parameterization} along {line.axis}: limit {number} of {len(groups)}"
            on_start = partial(_say, on_limit, name, len(groups) if number == 1 else 0)
            every.append((seen, solve(network, seen.given, sites=sites, seeds=seeds, on_start=on_start)))
    except HpxferError as error:
        raise HpxferError(f"{where}: {error}") from None
    limits = [(seen, limit) for seen, limit in every if min(limit.margins or [math.inf]) >= LEAST_MARGIN]
    tied = {seed for seen, _ in every for seed in seen.seeds} - {seed for seen, _ in limits for seed in seen.seeds}
    if tied:
        line = line.without(tied)
        left_out.append(
            f"{len(tied)} seeds whose top-K margin falls below {LEAST_MARGIN:g} in the limit: networks so close to a "
            "tie choose experts by their fluctuations"
        )
        if len(line.seeds) < 2:
            raise HpxferError(f"{where}: at least 2 seeds must be left, got {len(line.seeds)}; {left_out[-1]}")
    solved = SeedLimits(limits=limits, seeds=line.seeds)
    has_held_out = updates == trial.shape.steps
    loss, partly = _loss(results, line, solved, updates, has_held_out)
    if partly:
        left_out.append(f"{partly} passes, at which not all trials have logged a finite loss")
    spread = _logit_variance(results, line, solved, updates) if _is_probed(trial, groups) else None
    return Against(
        sweep=results.name,
        line=line,
        network=network,
        solved=solved,
        updates=updates,
        quantities=(loss,) if spread is None else (loss, spread),
        held_out=has_held_out,
        tolerance=tolerance,
        from_data=_from_data(results, line),
        left_out=tuple(left_out),
    )


def _say(on_limit: Callable[[str, float], None], name: str, limits: int, seconds: float) -> None:
    """Say which limit is solved. The first one says how long all of them take, as they are alike."""
    on_limit(f"{name}, and the others" if limits > 1 else name, limits * seconds)


def _loss(results: Results, line: Line, solved: SeedLimits, updates: int, has_held_out: bool) -> tuple[Quantity, int]:
    """Return the losses, and at how many passes not all trials have one."""
    passes, finite, partly = curve_of(results, line, LOSS_CURVE, range(updates if has_held_out else updates + 1))
    if not passes:
        raise HpxferError(
            f"{_where(results, line)}: the trials must have curves of their training loss, got none; run the sweep "
            "with resources.curves: all"
        )
    fell = solved.series("loss", passes).mean(axis=0)
    scale = float(fell[0] - fell.min()) or float(fell[0]) or 1.0
    if has_held_out:
        finite = np.concatenate([finite, held_out_of(results, line)[:, :, None]], axis=2)
        passes = (*passes, updates)
    return _quantity("loss", line, solved, passes, finite, scale), partly


def _logit_variance(results: Results, line: Line, solved: SeedLimits, updates: int) -> Quantity | None:
    """Return the variance of the router's logits at the steps at which the trials logged their spread."""
    passes, spread, _ = curve_of(results, line, SPREAD_CURVE, range(updates))
    scale = float(solved.series("logit_variance", passes).max(initial=0.0))
    if not passes or not scale:
        return None
    return _quantity("logit_variance", line, solved, passes, spread**2, scale)


def _quantity(
    name: str, line: Line, solved: SeedLimits, passes: tuple[int, ...], finite: Floats, scale: float
) -> Quantity:
    limit = solved.series(name, passes)
    found = Deviations(
        sizes=line.widths,
        values=finite - limit,
        error=solved.error(name, passes),
        error_seeds=solved.error_seeds,
        scale=scale,
        most=float(limit.max()),
    )
    return Quantity(name=name, passes=passes, limit=limit.mean(axis=0), finite=finite, deviations=found)


def _is_probed(trial: Trial, groups: Sequence[Seen]) -> bool:
    """Return whether the samples on which the trainer measures routers are the one batch of all passes and seeds."""
    # The trainer's measures are torch's, and they alone know their samples.
    from hpxfer.train.log import probe_samples

    training = groups[0].given.batches[: trial.shape.steps]
    if len(groups) > 1 or any(batch is not training[0] for batch in training):
        return False
    probe = batch_of(trial.setting, probe_samples(open_data(trial.setting)))
    return np.array_equal(probe.inputs, training[0].inputs) and np.array_equal(probe.targets, training[0].targets)


def _from_data(results: Results, line: Line) -> str:
    """Return what the report of the sweep says of the shape to tune at."""
    values = results.line(line.hp)["value"].nunique()
    if values < 2:
        return f"nothing, as the sweep scans one value of {line.hp}, which has no optimum."
    bases = analyze(results).found("bases")
    frame = bases.frame[(bases.frame["axis"] == line.axis) & (bases.frame["parameterization"] == line.parameterization)]
    reasons = [why for of, why in bases.unknown if of.startswith(f"{line.axis} {line.parameterization} ")]
    said = [*frame["advice"], *frame["in_brief"], *reasons]
    return next((text for text in said if text), "nothing of this arm.")
