"""What routers do as models grow, at the transferred HP, and how unevenly experts are used over training, by HP."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.joint_drift import wider_slope
from hpxfer.analysis.statistics.statistic import Found, Statistic, arms, by_axis, frame_of, listed
from hpxfer.analysis.statistics.transferred import Curve, TrainedShape, curves_by_trial, transferred
from hpxfer.host import scale_text
from hpxfer.intervals import Floats
from hpxfer.scaling.shape import Shape
from hpxfer.verdict import LossGrid
from hpxfer.verdict.thresholds import NUM_SE

LAST_SHARE = 0.25  # of the kept steps: `final` is their mean


LOADS = {
    "axis": "the axis of the sweep",
    "parameterization": "the arm",
    "hp": "the judged HP",
    "scale_name": "what the scale is",
    "shape": "the name of the shape",
    "scale": "of the shape",
    "is_base": "whether it is the base",
    "value": "of the HP",
    "fair_share": "active / experts: the share of tokens of each expert",
    "peak": "the largest deviation at any time, in fair shares; None if seeds have no step in common",
    "final": "of the expert furthest off in any layer, in fair shares: mean over seeds and the last quarter of steps",
    "num_seeds": "of the mean",
    "num_diverged": "seeds, whose curves end early",
}
DENSE, NO_LOAD = "no shape has experts", "no trial has a curve of its load"


def load_balance(
    grid: LossGrid, curves: Mapping[str, Curve], shapes: Mapping[tuple[str, str], Shape], hp: str
) -> list[dict[str, Any]]:
    """Return a row per shape and HP value of a grid; `curves` holds the load deviation of each trial."""
    of = {"axis": grid.axis, "parameterization": grid.parameterization, "hp": hp, "scale_name": grid.scale_name}
    rows = []
    for row in grid.rows:
        shape = shapes[row.axis, row.shape]
        for cell in sorted((*row.off_axis, *row.cells), key=lambda cell: cell.value):
            runs = [curves[trial] for _, trial in cell.trials if trial in curves]
            if runs and shape.num_experts:
                rows.append(
                    {
                        **of,
                        "shape": row.shape,
                        "scale": row.scale,
                        "is_base": row.is_base,
                        "value": cell.value,
                        "fair_share": shape.kappa,
                        **_over_seeds(runs, shape.kappa),
                        "num_seeds": len(runs),
                        "num_diverged": len(cell.losses) - len(cell.finite),
                    }
                )
    return rows


def _balances(inputs: Inputs) -> Found:
    grids = [] if inputs.judged is None else [estimates.grid for estimates in inputs.judged.estimates]
    cells = [cell for grid in grids for row in grid.rows for cell in (*row.off_axis, *row.cells)]
    trials = {trial for cell in cells for _, trial in cell.trials}
    curves = curves_by_trial(inputs.results.curves, "load_deviation", trials) if grids else {}
    rows, unknown = list[dict[str, Any]](), []
    for grid in grids:
        found = load_balance(grid, curves, inputs.shapes, inputs.hp)
        rows += found
        if not found:
            dense = not any(inputs.shapes[row.axis, row.shape].num_experts for row in grid.rows)
            unknown.append((f"{grid.axis} {grid.parameterization} {inputs.hp}", DENSE if dense else NO_LOAD))
    frame = frame_of(rows, LOADS)
    return Found(frame=frame, title=by_axis(frame, _most_uneven), unknown=tuple(unknown))


def _most_uneven(frame: pd.DataFrame) -> str:
    """Return the largest load deviation of each arm at the end of training, in fair shares."""
    ends = ((name, rows["final"].max()) for name, rows in arms(frame))
    return listed([f"{name} up to {end:.2g} fair shares off" for name, end in ends])


def _over_seeds(runs: Sequence[Curve], fair_share: float) -> dict[str, float | None]:
    """Return the largest and the final mean over seeds, for the steps that all of them reached, in fair shares."""
    steps = runs[0][0]
    for other, _ in runs[1:]:
        steps = steps if np.array_equal(steps, other) else np.intersect1d(steps, other)
    # All of these steps are steps of each run: equal counts mean equal steps.
    mean = np.mean([values if at.size == steps.size else values[np.isin(at, steps)] for at, values in runs], axis=0)
    last = max(1, round(LAST_SHARE * mean.size))
    return {
        "peak": float(mean.max()) / fair_share if mean.size else None,
        "final": float(mean[-last:].mean()) / fair_share if mean.size else None,
    }


BALANCE = Statistic(
    name="balance",
    title="Are all experts used alike?",
    note="The load of the expert that is furthest from its fair share, in units of that share.",
    compute=_balances,
    columns=LOADS,
    is_table=False,
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


COLUMNS = {
    "axis": "the axis of the sweep",
    "parameterization": "the arm",
    "hp": "the judged HP",
    "scale_name": "what the scale is",
    "scale": "of the shape",
    "is_base": "whether the shape is the base",
    "quantity": "of the router",
    "unit": "of the value",
    "when": "start: the first logged step, before any update; after: the next one; end: the last one",
    "step": "that was logged",
    "layer": "from the bottom, from 0; None for the mean over layers",
    "value": "mean over the seeds that did not diverge",
    "se": "its standard error; None with one seed, and of single layers",
    "seeds": "of the mean",
    "diverged_seeds": "which are not in it",
    "exponent": "of the scale, if a power law is claimed of the quantity",
    "exponent_low": "its 95% interval",
    "exponent_high": "its upper end",
}


def router_rows(inputs: Inputs) -> Found:
    """Return every quantity of routers along every axis: a row per shape, then one per layer of it."""
    known = inputs.once(transferred)
    used = {trial for shapes in known.along.values() for trained in shapes for trial in trained.trials}
    logged = _logged(inputs.results.curves, used) if used else {}
    std_of = _init_stds(inputs.results.trials, used)
    rows, unknown = list[dict[str, Any]](), []
    for finding in known.findings:
        of = {"axis": finding.axis, "parameterization": finding.parameterization, "hp": inputs.hp}
        of["scale_name"] = finding.scale_name
        shapes = [trained for trained in known.along[finding.key] if trained.shape.num_experts]
        ended = set(known.diverged_steps)
        found = [{**of, **row} for metric in METRICS for row in _rows(metric, shapes, logged, std_of, ended)]
        rows += found
        if not found:
            unknown.append((f"{' '.join(finding.key)} {inputs.hp}", _why_not(finding.base_value, shapes)))
    frame = frame_of(rows, COLUMNS)
    return Found(frame=frame, title=by_axis(frame, change_of), unknown=tuple(unknown))


# What a title says of a quantity, the first one that was logged.
SAID = {
    ENTROPY: "Router entropy as a share of log M",
    LOAD: "Load deviation of the experts, in fair shares,",
    RELATIVE: "Update of the router, in stds at init,",
    UPDATE: "Update of the router",
    GRADIENT: "Gradient of the router",
}


def change_of(frame: pd.DataFrame) -> str:
    """Return what is seen of the first quantity that was logged at the end of training, in one sentence."""
    ends = frame[(frame["when"] == "end") & frame["layer"].isna() & frame["quantity"].isin(SAID)]
    if ends.empty:
        return ""
    quantity = min(set(ends["quantity"]), key=list(SAID).index)
    kept = ends[ends["quantity"] == quantity]
    scales = sorted(set(kept["scale"]))
    span = f", from {kept['scale_name'].iloc[0]} {scale_text(scales[0])} to {scale_text(scales[-1])}"
    changes = listed([_change(name, rows) for name, rows in arms(kept)])
    return f"{SAID[quantity]} at the end of training{span if len(scales) > 1 else ''}: {changes}"


def _change(name: str, rows: pd.DataFrame) -> str:
    first, last = rows.iloc[0], rows.iloc[-1]
    if len(rows) == 1:
        return f"{name} {last['value']:.2g}"
    # NaN, which one seed has for its error, is sure of nothing.
    if not abs(last["value"] - first["value"]) > NUM_SE * math.hypot(*rows["se"].astype(float).iloc[[0, -1]]):
        return f"{name} {first['value']:.2g} and {last['value']:.2g}, no sure change"
    verb = "falls" if last["value"] < first["value"] else "rises"
    return f"{name} {verb} from {first['value']:.2g} to {last['value']:.2g}"


def _why_not(value: float | None, shapes: Sequence[TrainedShape]) -> str:
    if value is None:
        return NO_BASE_VALUE
    return "no trial that finished has a curve of its router" if shapes else "no shape has experts"


def _rows(
    metric: RouterMetric,
    shapes: Sequence[TrainedShape],
    logged: Mapping[tuple[str, str], Logged],
    std_of: Mapping[str, float],
    diverged: set[str],
) -> list[dict[str, Any]]:
    """Return the rows of a quantity along an axis."""
    rows, by_seed = list[dict[str, Any]](), []
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
            rows += _of_shape(metric, trained, step, list(values.values()), diverged)
            by_seed.append((trained.row.scale, {seed: float(of.mean()) for seed, of in values.items()}))
    slope, low, high = wider_slope(by_seed) if metric.is_power else (None, None, None)
    return [{**row, "exponent": slope, "exponent_low": low, "exponent_high": high} for row in rows]


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


def _of_shape(
    metric: RouterMetric, trained: TrainedShape, step: int, values: Sequence[Floats], diverged: set[str]
) -> Iterator[dict[str, Any]]:
    """Yield the row of a shape, and one per layer where each was logged."""
    layers_SL = np.stack(values)
    mean_S = layers_SL.mean(1)
    of = {
        "scale": trained.row.scale,
        "is_base": trained.row.is_base,
        "quantity": metric.name,
        "unit": metric.unit,
        "when": metric.when,
        "step": step,
        "seeds": mean_S.size,
        "diverged_seeds": sum(trial in diverged for trial in trained.trials),
    }
    se = float(mean_S.std(ddof=1)) / math.sqrt(mean_S.size) if mean_S.size > 1 else None
    yield {**of, "layer": None, "value": float(mean_S.mean()), "se": se}
    for layer, value in enumerate(layers_SL.mean(0).tolist() if layers_SL.shape[1] > 1 else ()):
        yield {**of, "layer": layer, "value": value, "se": None}


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
    title="What do routers do as the model grows?",
    note="At the transferred HP, mean over seeds and layers. The entropy of the normalized gates of all M experts is "
    "given as a share of log M and of log K (K active experts). start is the first step, before any update; after "
    "is the next step that was logged; end is the last one. A relative update is the RMS of the update of that "
    "step over the std that the table draws the router with, and so is the distance from the start. update / now "
    "is over the RMS of the weights before the update. Logits, their spread over experts, the margin between the "
    "last chosen expert and the next, and the share of samples whose experts changed since the start are those of "
    "a fixed batch. An exponent is the slope of log2 value over log2 scale, with the wider of two 95% intervals: "
    "from seeds, and from the scatter of shapes about the line.",
    compute=router_rows,
    columns=COLUMNS,
    is_table=False,
)
