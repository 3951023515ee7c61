"""What routers do as models grow, at the transferred HP, and how unevenly experts are used over training, by HP."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.joint_drift import wider_slope
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.analysis.statistics.transferred import Curve, TrainedShape, curves_by_trial, transferred
from hpxfer.scaling.shape import Shape
from hpxfer.verdict import Floats, LossGrid, SeedLosses, ShapeLosses

LAST_SHARE = 0.25  # of the kept steps: `final` is their mean


@dataclass(frozen=True, kw_only=True)
class BalanceLine:
    """One shape at one HP. A deviation is |share of tokens - fair share| of the expert furthest off, in any layer.

    `fair_share` is active / experts. A deviation as large as that means an expert that is never used, or twice as much.
    """

    shape: str
    scale: float
    is_base: bool
    value: float  # of the HP
    fair_share: float
    steps: tuple[int, ...]
    max_deviation: tuple[float, ...]  # the largest over layers, mean over seeds
    peak: float | None  # largest over time; None if seeds have no step in common
    final: float | None  # mean over the last quarter of the steps kept
    num_seeds: int
    num_diverged: int  # seeds, whose curves end early


@dataclass(frozen=True, kw_only=True)
class LoadBalance:
    """The lines of one parameterization along one axis, by scale and HP."""

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    lines: tuple[BalanceLine, ...] = ()
    why_not: str | None = None


def load_balance(
    grid: LossGrid, curves: Mapping[str, Curve], shapes: Mapping[tuple[str, str], Shape], hp: str
) -> LoadBalance:
    """Return the load balance of the trials of a grid; `curves` holds the load deviation of each trial."""
    lines = []
    for row in grid.rows:
        shape = shapes[row.axis, row.shape]
        for cell in sorted((*row.off_axis, *row.cells), key=lambda cell: cell.value):
            runs = [curves[trial] for _, trial in cell.trials if trial in curves]
            if runs and shape.num_experts:
                lines.append(_balance_line(row, cell, shape, runs))
    dense = not any(shapes[row.axis, row.shape].num_experts for row in grid.rows)
    why = "no shape has experts" if dense else "no trial has a curve of its load"
    return LoadBalance(
        axis=grid.axis,
        scale_name=grid.scale_name,
        parameterization=grid.parameterization,
        hp=hp,
        lines=tuple(lines),
        why_not=None if lines else why,
    )


def _balances(inputs: Inputs) -> list[LoadBalance]:
    if inputs.judged is None:
        return []
    grids = [estimates.grid for estimates in inputs.judged.estimates]
    cells = [cell for grid in grids for row in grid.rows for cell in (*row.off_axis, *row.cells)]
    curves = _deviations(inputs.results.curves, {trial for cell in cells for _, trial in cell.trials})
    return [load_balance(grid, curves, inputs.shapes, inputs.hp) for grid in grids]


def _deviations(curves: pd.DataFrame, trials: set[str]) -> dict[str, Curve]:
    return curves_by_trial(curves, "load_deviation", trials)


def _balance_line(row: ShapeLosses, cell: SeedLosses, shape: Shape, runs: Sequence[Curve]) -> BalanceLine:
    return BalanceLine(
        shape=row.shape,
        scale=row.scale,
        is_base=row.is_base,
        value=cell.value,
        fair_share=shape.kappa,
        num_seeds=len(runs),
        num_diverged=len(cell.losses) - len(cell.finite),
        **_over_seeds(runs),
    )


def _over_seeds(runs: Sequence[Curve]) -> dict[str, Any]:
    """Return the mean over seeds, for the steps that all of them reached."""
    steps = runs[0][0]
    for other, _ in runs[1:]:
        steps = steps if np.array_equal(steps, other) else np.intersect1d(steps, other)
    # All of these steps are steps of each run: equal counts mean equal steps.
    mean = np.mean([values if at.size == steps.size else values[np.isin(at, steps)] for at, values in runs], axis=0)
    last = max(1, round(LAST_SHARE * mean.size))
    return {
        "steps": tuple(steps.tolist()),
        "max_deviation": tuple(mean.tolist()),
        "peak": float(mean.max()) if mean.size else None,
        "final": float(mean[-last:].mean()) if mean.size else None,
    }


BALANCE = Statistic(
    name="balance",
    title="Load balance",
    note="The largest deviation of an expert's load from the fair one, over training.",
    compute=_balances,
    parts="lines",
)


ROLE = "router"
When = Literal["start", "after", "end"]
# Values by logged step, layers averaged: trial id -> (steps ascending, values [layers, steps]).
Logged = tuple[tuple[int, ...], Floats]


@dataclass(frozen=True, kw_only=True)
class RouterMetric:
    """A quantity of routers. `curve` names what the trainer logs, by layer or for the role `router`."""

    name: str
    curve: str
    when: When  # the first logged step, the first one after an update, or the last one
    unit: str
    is_power: bool = False  # whether a power law of the scale is claimed, so that it has an exponent
    over: str | None = None  # another curve, by whose value at the same step it is divided


ENTROPY = "entropy / log M"
OF_ACTIVE = "entropy / log K"
LOAD = "load deviation"
RELATIVE = "relative update"
UPDATE = "update"
GRADIENT = "gradient"
BY_NOW = "update / now"
MOVED = "distance from the start"
ABSOLUTE = "distance from the start, absolute"
LOGITS = "logits"
SPREAD = "logit spread"
MARGIN = "top-K margin"
CHANGED = "changed experts"
# An update is measured at the step that makes it, so that of the first step is logged at the start.
METRICS = (
    RouterMetric(name=ENTROPY, curve="router_entropy_nats", when="start", unit="1"),
    RouterMetric(name=ENTROPY, curve="router_entropy_nats", when="after", unit="1"),
    RouterMetric(name=ENTROPY, curve="router_entropy_nats", when="end", unit="1"),
    RouterMetric(name=OF_ACTIVE, curve="router_entropy_nats", when="end", unit="1"),
    RouterMetric(name=LOAD, curve="load_deviation", when="end", unit="fair shares"),
    RouterMetric(name=RELATIVE, curve="update_rms", when="start", unit="init std", is_power=True),
    RouterMetric(name=RELATIVE, curve="update_rms", when="end", unit="init std", is_power=True),
    RouterMetric(name=UPDATE, curve="update_rms", when="start", unit="1", is_power=True),
    RouterMetric(name=UPDATE, curve="update_rms", when="end", unit="1", is_power=True),
    RouterMetric(name=GRADIENT, curve="grad_rms", when="start", unit="1", is_power=True),
    RouterMetric(name=GRADIENT, curve="grad_rms", when="end", unit="1", is_power=True),
    # The trials of a family that shows its routers have these too (`hpxfer.train.log`).
    RouterMetric(name=BY_NOW, curve="update_rms", when="end", unit="RMS now", is_power=True, over="weight_rms"),
    RouterMetric(name=MOVED, curve="moved_rms", when="end", unit="init std", is_power=True),
    RouterMetric(name=ABSOLUTE, curve="moved_rms", when="end", unit="1", is_power=True),
    RouterMetric(name=LOGITS, curve="router_logit_rms", when="start", unit="1", is_power=True),
    RouterMetric(name=LOGITS, curve="router_logit_rms", when="end", unit="1", is_power=True),
    RouterMetric(name=SPREAD, curve="router_logit_spread", when="start", unit="1", is_power=True),
    RouterMetric(name=SPREAD, curve="router_logit_spread", when="end", unit="1", is_power=True),
    RouterMetric(name=MARGIN, curve="router_margin_median", when="start", unit="1"),
    RouterMetric(name=MARGIN, curve="router_margin_median", when="end", unit="1"),
    RouterMetric(name=CHANGED, curve="router_changed_share", when="end", unit="1"),
)


@dataclass(frozen=True, kw_only=True)
class RouterPoint:
    """One shape: mean and standard error over the seeds that did not diverge."""

    shape: str
    scale: float
    is_base: bool
    step: int
    mean: float
    se: float | None  # None with one seed
    num_seeds: int
    num_diverged: int
    layers: tuple[float, ...] = ()  # means over seeds, by layer from the bottom; () if it is logged for all of them


@dataclass(frozen=True, kw_only=True)
class RouterLine:
    """One quantity of one parameterization along one axis, at the transferred HP."""

    axis: str
    parameterization: str
    hp: str
    scale_name: str
    metric: str = ""
    when: str = ""
    unit: str = ""
    scales: tuple[float, ...] = ()
    means: tuple[float, ...] = ()
    exponent: float | None = None  # of the scale, if a power law is claimed
    exponent_low: float | None = None  # 95%
    exponent_high: float | None = None
    points: tuple[RouterPoint, ...] = ()
    why_not: str | None = None


def router_lines(inputs: Inputs) -> list[RouterLine]:
    """Return every quantity of routers along every axis. Where there is none, one line says why."""
    known = inputs.once(transferred)
    used = {trial for shapes in known.along.values() for trained in shapes for trial in trained.trials}
    logged = _logged(inputs.results.curves, used) if used else {}
    std_of = _init_stds(inputs.results.trials, used)
    out = []
    for finding in known.findings:
        blank = RouterLine(
            axis=finding.axis,
            parameterization=finding.parameterization,
            hp=inputs.hp,
            scale_name=finding.scale_name,
        )
        shapes = [trained for trained in known.along[finding.key] if trained.shape.num_experts]
        ended = set(known.diverged_steps)
        lines = [line for metric in METRICS if (line := _line(metric, shapes, logged, std_of, ended, blank))]
        out += lines or [replace(blank, why_not=_why_not(finding.base_value, shapes))]
    return out


def _why_not(value: float | None, shapes: Sequence[TrainedShape]) -> str:
    if value is None:
        return NO_BASE_VALUE
    return "no trial that finished has a curve of its router" if shapes else "no shape has experts"


def _line(
    metric: RouterMetric,
    shapes: Sequence[TrainedShape],
    logged: Mapping[tuple[str, str], Logged],
    std_of: Mapping[str, float],
    diverged: set[str],
    blank: RouterLine,
) -> RouterLine | None:
    points, by_seed = [], []
    for trained in shapes:
        values: dict[int, Floats] = {}  # seed -> [layers]
        step = 0
        for seed, trial in trained.cell.trial_of.items():
            unit = _unit(metric, trained.shape, std_of.get(trial))
            if trial in diverged or unit is None or (metric.curve, trial) not in logged:
                continue
            steps, value_LN = logged[metric.curve, trial]
            at = {"start": 0, "after": 1, "end": -1}[metric.when]
            if len(steps) <= at or (by := _divisor(metric, trial, steps[at], logged)) is None:
                continue
            step, values[seed] = steps[at], value_LN[:, at] / (unit * by)
        if values:
            points.append(_point(trained, step, list(values.values()), diverged))
            by_seed.append((trained.row.scale, {seed: float(of.mean()) for seed, of in values.items()}))
    if not points:
        return None
    slope, low, high = wider_slope(by_seed) if metric.is_power else (None, None, None)
    return replace(
        blank,
        metric=metric.name,
        when=metric.when,
        unit=metric.unit,
        scales=tuple(point.scale for point in points),
        means=tuple(point.mean for point in points),
        exponent=slope,
        exponent_low=low,
        exponent_high=high,
        points=tuple(points),
    )


def _divisor(metric: RouterMetric, trial: str, step: int, logged: Mapping[tuple[str, str], Logged]) -> Floats | None:
    """Return what the metric's other curve has at a step, or ones without such a curve; None where it has nothing."""
    if metric.over is None:
        return np.ones(1)
    steps, value_LN = logged.get((metric.over, trial), ((), np.empty((0, 0))))
    if step not in steps:
        return None
    by_L: Floats = value_LN[:, steps.index(step)]
    return by_L if by_L.all() else None


def _unit(metric: RouterMetric, shape: Shape, init_std: float | None) -> float | None:
    """Return what a logged value is divided by; None if there is nothing to divide by."""
    match metric.name:
        case "entropy / log M":
            return math.log(shape.num_experts) or None
        case "entropy / log K":
            return math.log(shape.num_active) or None
        case "load deviation":
            return shape.kappa
        case "relative update" | "distance from the start":
            return init_std or None  # a router that starts at zero has no size at first: its absolute numbers are given
        case _:
            return 1.0


def _point(trained: TrainedShape, step: int, values: Sequence[Floats], diverged: set[str]) -> RouterPoint:
    layers_SL = np.stack(values)
    mean_S = layers_SL.mean(1)
    return RouterPoint(
        shape=trained.row.shape,
        scale=trained.row.scale,
        is_base=trained.row.is_base,
        step=step,
        mean=float(mean_S.mean()),
        se=float(mean_S.std(ddof=1)) / math.sqrt(mean_S.size) if mean_S.size > 1 else None,
        num_seeds=mean_S.size,
        num_diverged=sum(trial in diverged for trial in trained.trials),
        layers=tuple(layers_SL.mean(0).tolist()) if layers_SL.shape[1] > 1 else (),
    )


def _logged(curves: pd.DataFrame, trials: set[str]) -> dict[tuple[str, str], Logged]:
    """Return (curve, trial id) -> what was logged of routers."""
    names = {name for metric in METRICS for name in (metric.curve, metric.over) if name}
    of_role = curves["role"].isna() | (curves["role"] == ROLE)
    kept = curves[curves["metric"].isin(names) & curves["trial_id"].isin(trials) & of_role]
    out = {}
    for (name, trial), rows in kept.groupby(["metric", "trial_id"], observed=True):
        table = rows.pivot_table(index="layer", columns="step", values="value", dropna=False)
        if rows["layer"].isna().all():
            table = rows.sort_values("step").set_index("step")[["value"]].T
        table = table.dropna(axis="columns")
        if table.size:
            out[str(name), str(trial)] = tuple(int(step) for step in table.columns), table.to_numpy(float)
    return out


def _init_stds(trials: pd.DataFrame, used: set[str]) -> dict[str, float]:
    """Return trial id -> the std that the table draws the router with at this shape. A model may have none."""
    kept = trials[trials["trial_id"].isin(used)]
    out = {}
    for trial, text in zip(kept["trial_id"], kept["resolved"], strict=True):
        if (numbers := json.loads(text)["roles"].get(ROLE)) is not None:
            out[str(trial)] = float(numbers["init_std"])
    return out


ROUTERS = Statistic(
    name="routers",
    title="What routers do as the model grows",
    note="At the transferred HP, mean over seeds and layers. The entropy of the normalized gates of all M experts is "
    "given as a share of log M and of log K (K active experts). start is the first step, before any update; after "
    "is the next step that was logged; end is the last one. A relative update is the RMS of the update of that "
    "step over the std that the table draws the router with, and so is the distance from the start. update / now "
    "is over the RMS of the weights before the update. Logits, their spread over experts, the margin between the "
    "last chosen expert and the next, and the share of samples whose experts changed since the start are those of "
    "a fixed batch. An exponent is the slope of log2 value over log2 scale, with the wider of two 95% intervals: "
    "from seeds, and from the scatter of shapes about the line.",
    compute=router_lines,
)
