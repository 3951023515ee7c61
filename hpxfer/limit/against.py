"""against: a sweep of the family `mlp` beside the limits of its arms and seeds. Nothing is trained.

Where a size stays that the limit has infinite, the largest shape stands for the limit.

Letters: J sizes, ascending; S seeds; T passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from hpxfer.analysis import analyze
from hpxfer.analysis.statistics.statistic import frame_of
from hpxfer.data import open_data
from hpxfer.errors import HpxferError
from hpxfer.limit.comparison import (
    COLUMNS,
    Comparisons,
    Row,
    answer_beside_largest,
    answer_of,
    large_enough,
    verdict_of,
)
from hpxfer.limit.deviations import Deviations, distances, mean_of, mean_slope, missed, network_slope
from hpxfer.limit.lines import Line, curve_of, lines_of
from hpxfer.limit.network import Floats, Network
from hpxfer.limit.of_trials import largest_instead, network_of
from hpxfer.limit.refused import MOST_EXPERT_SAMPLES, MOST_SAMPLES
from hpxfer.limit.seen import SeedLimits, Seen, batch_of, seen_by
from hpxfer.limit.solve import LEAST_MARGIN, solve
from hpxfer.results import Results
from hpxfer.trial import Trial

# An error that is estimated from few draws is itself uncertain. With 8 planted networks are accused as seldom as ALPHA
# says, also where the solver's error is the larger one. With 4 they are ten times as often.
SEEDS = 8
# The share of the limit's loss within which a size counts as large enough.
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
    limit's loss within which a size is large enough. `on_limit` is called with the name of each limit before it is
    solved, and with about how many seconds that takes on one core.

    Raise HpxferError if an arm has no limit that is solved, if its samples are not on this machine, or if fewer than
    two seeds finished at every size.
    """
    if seeds < 2:
        raise HpxferError(f"seeds: must be at least 2, as one draw shows no error of the limit, got {seeds}")
    if not 0 < tolerance < 1:
        raise HpxferError(f"tolerance: must be a share between 0 and 1, got {tolerance:g}")
    lines = lines_of(results, axis, arm, value)
    # All are refused before one is solved, which may take minutes.
    ready = [(line, largest_instead(line.path, line.where)) for line in lines]
    networks = [None if why else network_of(line.path, line.where) for line, why in ready]
    plans = [(*each, network, _updates(each[0], network, steps)) for each, network in zip(ready, networks, strict=True)]
    rows: dict[str, list[Row]] = {name: [] for name in COLUMNS}
    for line, why, network, updates in plans:
        if network is None:
            for name, found in _beside_largest(results, line, why or "", updates, tolerance).items():
                rows[name] += [{"arm": line.name, **row} for row in found]
            continue
        groups = seen_by([line.trials[each] for each in line.ids.iloc[:, 0]], updates, has_bias=network.regime == "I")
        limits, kept = _solved(line, network, groups, on_limit, sites=sites, seeds=seeds)
        for name, found in _compared(results, kept, network, groups, limits, updates, tolerance).items():
            rows[name] += [{"arm": line.name, **row} for row in found]
    return Comparisons(sweep=results.name, frames={name: frame_of(rows[name], of) for name, of in COLUMNS.items()})


def _updates(line: Line, network: Network | None, steps: int | None) -> int:
    """Return how many updates are compared. Raise HpxferError if they are too many, or the seeds too few."""
    where, trial = line.where, line.path[0]
    whole, batch = trial.shape.steps, trial.shape.batch_tokens
    if steps is not None and not 1 <= steps <= whole:
        raise HpxferError(f"{where}: steps must be from 1 to the {whole} of the sweep, got {steps}")
    if len(line.ids) < 2:
        got = "; ".join([str(len(line.ids)), *line.left_out])
        raise HpxferError(f"{where}: at least 2 seeds must have finished at every size, got {got}; run more seeds")
    updates = steps or whole
    if network is None:
        return updates
    if updates == whole and trial.setting.validation_tokens > MOST_HELD_OUT * batch:
        updates -= 1  # the loss after the last update is of held-out samples alone
    if not updates:
        raise HpxferError(f"{where}: the loss must be known after an update, got a sweep of 1 step; take more steps")
    most = {"I": MOST_EXPERT_SAMPLES // (network.num_experts or 1), "residual": updates * batch}
    allowed = most.get(network.regime, MOST_SAMPLES)
    if updates * batch > allowed:
        cost = "cube" if network.regime == "III" else "square"
        fits = allowed // batch
        fix = f"compare the first {fits} of them (--steps {fits})" if fits else "take smaller batches"
        raise HpxferError(
            f"{where}: updates times samples must be at most {allowed} in regime {network.regime}, got {updates} "
            f"updates of {batch} samples, as the time to solve grows as their {cost}; {fix}"
        )
    return updates


def _solved(
    line: Line, network: Network, groups: Sequence[Seen], on_limit: Callable[[str, float], None], **solver: Any
) -> tuple[SeedLimits, Line]:
    """Return the limits of all seeds, and the line without the seeds whose top-K is nearly a tie."""
    every = []
    try:
        for number, seen in enumerate(groups, start=1):
            name = f"{line.name}: limit {number} of {len(groups)}"
            on_start = partial(_say, on_limit, name, len(groups) if number == 1 else 0)
            every.append((seen, solve(network, seen.given, on_start=on_start, **solver)))
    except HpxferError as error:
        raise HpxferError(f"{line.where}: {error}") from None
    limits = [(seen, limit) for seen, limit in every if min(limit.margins or [math.inf]) >= LEAST_MARGIN]
    free = {seed for seen, _ in limits for seed in seen.seeds}
    if tied := [seed for seed in line.ids.index if seed not in free]:
        why = (
            f"{len(tied)} seeds whose top-K margin falls below {LEAST_MARGIN:g} in the limit: networks so close to a "
            "tie choose experts by their fluctuations"
        )
        line = replace(line, ids=line.ids.drop(tied), left_out=(*line.left_out, why))
        if len(line.ids) < 2:
            raise HpxferError(f"{line.where}: at least 2 seeds must be left, got {len(line.ids)}; {why}")
    return SeedLimits(limits=limits, seeds=tuple(map(int, line.ids.index))), line


def _say(on_limit: Callable[[str, float], None], name: str, limits: int, seconds: float) -> None:
    """Say which limit is solved. The first one says how long all of them take, as they are alike."""
    on_limit(f"{name}, and the others" if limits > 1 else name, limits * seconds)


def _compared(
    results: Results,
    line: Line,
    network: Network,
    groups: Sequence[Seen],
    limits: SeedLimits,
    updates: int,
    tolerance: float,
) -> dict[str, list[Row]]:
    """Return the rows of an arm in every frame."""
    held_out = _held_out(line, updates)
    passes, finite, partly = _loss(results, line, updates)
    numbers = {"loss": (passes, finite)}
    if _is_probed(line.path[0], groups):
        numbers["logit_variance"] = _of_logits(results, line, updates)["logit_variance"]
    measured = []
    for name, (of, values) in numbers.items():
        limit, error = limits.series(name, of), limits.error(name, of)
        scale = _fall(limit, of, held_out) if name == "loss" else float(limit.max(initial=0.0))
        if scale:
            found = _deviations(line, values, limit, scale, error=error, error_seeds=limits.error_seeds)
            measured.append((found, *_measured(name, found, of, values, limit, held_out)))
    found, quantities = measured[0][0], [row for _, row, _ in measured]
    every = [row for _, _, rows in measured for row in rows]
    sizes = distances(found, limits.series("loss", passes).mean(axis=0), tolerance)
    is_trivial = found.scale < tolerance * found.most
    verdict, p = verdict_of(quantities)
    arm = _arm(line, updates, tolerance, partly, sizes, is_trivial, results) | {
        "limit": f"{'' if network.regime == 'residual' else 'regime '}{network.regime}, {network.parameterization}",
        "seed_numbers": list(limits.seeds),
        "limits": len(limits.limits),
        "exact": limits.is_exact,
        "verdict": verdict,
        "p": p,
        "cautions": list(limits.cautions),
        "network": asdict(network),
    }
    arm["answer"] = answer_of(arm, sizes, quantities, is_trivial, held_out)
    slopes = {"one network": (network_slope(found), -0.5), "mean over seeds": (mean_slope(found), -1.0)}
    exponents = [
        {"distance": name, "expected": expected} | ({} if slope is None else asdict(slope))
        for name, (slope, expected) in slopes.items()
    ]
    return {"arms": [arm], "sizes": sizes, "exponents": exponents, "quantities": quantities, "updates": every}


def _beside_largest(results: Results, line: Line, why: str, updates: int, tolerance: float) -> dict[str, list[Row]]:
    """Return the rows of an arm whose largest shape stands for the limit: each seed is compared with itself there."""
    held_out = _held_out(line, updates)
    passes, finite, partly = _loss(results, line, updates)
    every: list[Row] = []
    for name, (steps, values) in {"loss": (passes, finite), **_of_logits(results, line, updates)}.items():
        scale = _fall(values[-1], steps, held_out) if name == "loss" else float(np.abs(values[-1]).max(initial=0.0))
        if scale:
            found = _deviations(line, values, values[-1], scale)
            every += _rows(name, found, steps, values, values[-1], held_out)
    found = _deviations(line, finite, finite[-1], _fall(finite[-1], passes, held_out))
    sizes = distances(found, finite[-1].mean(axis=0), tolerance)
    is_trivial = found.scale < tolerance * found.most
    arm = _arm(line, updates, tolerance, partly, sizes, is_trivial, results) | {
        "limit": f"the largest shape, {line.path[-1].shape.label()}",
        "limits": 0,
        "verdict": "not judged",
    }
    arm["answer"] = answer_beside_largest(arm, sizes, why, is_trivial)
    return {"arms": [arm], "sizes": sizes, "updates": every}


def _arm(
    line: Line, updates: int, tolerance: float, partly: int, sizes: Sequence[Row], is_trivial: bool, results: Results
) -> Row:
    """Return what every row of an arm has."""
    return {
        "size": line.size,
        "hp": line.hp,
        "value": line.value,
        "updates": updates,
        "seeds": len(line.ids),
        "seed_numbers": list(map(int, line.ids.index)),
        "tolerance": tolerance,
        "large_enough": None if is_trivial else large_enough(sizes),
        "from_data": _from_data(results, line),
        "left_out": [
            *line.left_out,
            *([f"{partly} passes, at which not all trials have logged a finite loss"] if partly else []),
        ],
        "cautions": [],
    }


def _held_out(line: Line, updates: int) -> int | None:
    """Return the pass whose loss is that on held-out samples: the one after the last update of the run."""
    return updates if updates == line.path[0].shape.steps else None


def _loss(results: Results, line: Line, updates: int) -> tuple[Sequence[int], Floats, int]:
    """Return passes, their losses [J, S, T], and at how many passes not all trials have one."""
    held_out = _held_out(line, updates)
    passes, finite, partly = curve_of(results, line, "train_loss_nats", range(updates + (held_out is None)))
    if not passes:
        raise HpxferError(
            f"{line.where}: the trials must have curves of their training loss, got none; run the sweep with "
            "resources.curves: all"
        )
    if held_out is not None:
        losses = dict(zip(results.trials["trial_id"], results.trials["validation_loss_nats"], strict=True))
        finite = np.concatenate([finite, line.ids.T.map(losses.get).to_numpy(float)[:, :, None]], axis=2)
        passes = [*passes, held_out]
    return passes, finite, partly


def _fall(limit: Floats, passes: Sequence[int], held_out: int | None) -> float:
    """Return what deviations of the loss are compared with: how far the training loss of the limit [S, T] falls."""
    fell = limit[:, [at != held_out for at in passes]].mean(axis=0)
    return float(fell[0] - fell.min()) or float(fell[0]) or 1.0


def _of_logits(results: Results, line: Line, updates: int) -> dict[str, tuple[Sequence[int], Floats]]:
    """Return quantity -> the steps at which trials logged it of the router's logits, and its values [J, S, T]."""
    curves = {"logit_variance": ("spread", 2), "logit_low": ("low", 1), "logit_high": ("high", 1)}
    return {
        name: curve_of(results, line, f"router_logit_{curve}", range(updates), power=power)[:2]
        for name, (curve, power) in curves.items()
    }


def _deviations(
    line: Line, finite: Floats, limit: Floats, scale: float, *, error: Floats | None = None, error_seeds: int = 0
) -> Deviations:
    """Return the deviations of numbers [J, S, T] from a limit [S, T]; of a shape that is the limit there are none."""
    count = len(finite) if error is not None else len(finite) - 1
    return Deviations(
        sizes=tuple(map(float, line.ids.columns[:count])),
        values=finite[:count] - limit,
        error=np.zeros(limit.shape[1]) if error is None else error,
        error_seeds=error_seeds,
        scale=scale,
        most=float(limit.max()),
    )


def _rows(
    name: str,
    found: Deviations,
    passes: Sequence[int],
    finite: Floats,
    limit: Floats,
    held_out: int | None,
    p_of_pass: Floats | None = None,
) -> list[Row]:
    """Return a row per size and pass."""
    means = mean_of(found.values, found)
    return [
        {
            "quantity": name,
            "update": update,
            "held_out": update == held_out,
            "size": size,
            "mean": finite[j, :, t].mean(),
            "spread": finite[j, :, t].std(ddof=1),
            "limit": limit[:, t].mean(),
            "limit_error": found.error[t],
            "deviation": means.mean[j, t],
            "error": means.error[j, t],
            "z": means.z[j, t],
            "p": None if p_of_pass is None else p_of_pass[t],
        }
        for j, size in enumerate(found.sizes)
        for t, update in enumerate(passes)
    ]


def _measured(
    name: str, found: Deviations, passes: Sequence[int], finite: Floats, limit: Floats, held_out: int | None
) -> tuple[Row, list[Row]]:
    """Return the row of the surest deviation of a number, and a row per size and pass."""
    test = missed(found)
    rows = _rows(name, found, passes, finite, limit, held_out, test.p_of_pass)
    every = {(row["size"], row["update"]): row for row in rows}
    last = every[found.sizes[-1], passes[test.worst]]
    surest = {key: last[key] for key in ("quantity", "update", "held_out", "deviation", "error", "z")}
    there = {
        "against_size": test.against_size,
        "deviation_there": every[test.against_size, last["update"]]["deviation"],
    }
    return surest | there | {"p": test.p, "visible_offset": test.seen}, rows


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
