"""Training curves: loss over steps of each shape at its own best HP, one panel per parameterization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from hpxfer.analysis import Finding, TransferReport
from hpxfer.analysis.statistics.transferred import Curve, curves_by_trial
from hpxfer.figures import style
from hpxfer.figures.kinds import HPFigure, HPInput, Info
from hpxfer.figures.text import along, listed, shape_name
from hpxfer.results import Results
from hpxfer.spec import own_data
from hpxfer.verdict import NATS, JudgedLoss, scale_text

METRIC = "train_loss_nats"
TAIL = 0.02  # fraction of the run: curves are shown as means over windows of so many steps
# Fraction of the fall that is shown: in the first steps, near the logarithm of the vocabulary, all shapes look alike.
HEADROOM = 0.6


@dataclass(frozen=True, kw_only=True)
class TrainingCurve:
    """One shape at one HP: mean, lowest and highest loss over seeds in nats, over the steps that all seeds have."""

    name: str
    scale: float
    value: float  # of the HP
    steps: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    num_seeds: int
    diverged_step: int | None  # the first of any seed


@dataclass(frozen=True, kw_only=True)
class TrainingPanel:
    """One parameterization."""

    parameterization: str
    curves: tuple[TrainingCurve, ...]  # by scale


@dataclass(frozen=True, kw_only=True)
class TrainingInfo:
    """The curves along one axis."""

    title: str
    axis: str
    scale_name: str
    hp: str
    y_low: float
    y_high: float
    panels: tuple[TrainingPanel, ...]
    caption: str = (
        "Training loss at the HP of the grid that is best at each shape, as means over seeds and over windows of 2% of "
        "the steps. The band is the range of seeds, and a cross is a divergence."
    )
    judged: JudgedLoss = NATS

    def table(self) -> pd.DataFrame:
        """Return one row per point."""
        rows = [
            (self.axis, panel.parameterization, curve.scale, curve.value, *point)
            for panel in self.panels
            for curve in panel.curves
            for point in zip(curve.steps, curve.mean, curve.low, curve.high, strict=True)
        ]
        columns = ["axis", "parameterization", self.scale_name, self.hp, "step", "mean_nats", "min_nats", "max_nats"]
        return pd.DataFrame(rows, columns=columns).rename(columns=self.judged.column)


Floats = NDArray[np.float64]
Curves = Mapping[str, Curve]
Key = tuple[str, str, str]  # axis, parameterization, shape


def best_cells(report: TransferReport, cells: pd.DataFrame) -> dict[Key, pd.DataFrame]:
    """Return the cells of each shape at its own best HP that have a result.

    `cells` is the line of the HP, as `Results.line` gives it.
    """
    value_of = {
        (finding.axis, finding.parameterization, shape.shape): shape.best_value
        for finding in report.findings
        for shape in finding.shapes
        if shape.best_value is not None
    }
    known = cells[cells["status"].isin(["finished", "diverged"])]
    out: dict[Key, pd.DataFrame] = {}
    for (axis, name, shape), rows in known.groupby(["axis", "parameterization", "shape"], observed=True):
        key = (str(axis), str(name), str(shape))
        best = rows[rows["value"] == value_of.get(key)]
        if len(best):
            out[key] = best
    return out


def loss_curves(best: Mapping[Key, pd.DataFrame], curves: pd.DataFrame) -> Curves:
    """Return trial_id -> (ascending steps, training losses in nats) of these cells. `curves` is that of `Results`."""
    return curves_by_trial(curves, METRIC, {str(trial_id) for rows in best.values() for trial_id in rows["trial_id"]})


def training_info(
    report: TransferReport, axis: str, best: Mapping[Key, pd.DataFrame], known: Curves
) -> TrainingInfo | str:
    """Return what the figure of one axis shows, or why there is none. See `best_cells` and `loss_curves`."""
    findings = along(report.findings, axis, report.control)
    panels = tuple(panel for finding in findings if (panel := _panel(finding, best, known)).curves)
    if not panels:
        return f"no best trial along {axis} has a loss curve"
    curves = [curve for panel in panels for curve in panel.curves if curve.mean]
    low = min((min(curve.low) for curve in curves), default=0.0)
    high = max((curve.mean[0] for curve in curves), default=1.0)
    end = max((curve.mean[-1] for curve in curves), default=1.0)
    return TrainingInfo(
        title=f"Training along {axis} at each shape's best {report.hp}: {listed([_ends(panel) for panel in panels])}",
        axis=axis,
        scale_name=findings[0].scale_name,
        hp=report.hp,
        y_low=low - 0.04 * (high - low),
        y_high=max(low + HEADROOM * (high - low), end),
        panels=panels,
        judged=report.judged,
    )


def _ends(panel: TrainingPanel) -> str:
    known = [f"{curve.mean[-1]:.2f} ({scale_text(curve.scale)})" for curve in panel.curves if curve.mean]
    if not known:
        return f"{panel.parameterization} unknown"
    return f"{panel.parameterization} ends at {known[0]}" + (f" to {known[-1]}" if len(known) > 1 else "")


def _panel(finding: Finding, best: Mapping[Key, pd.DataFrame], known: Curves) -> TrainingPanel:
    out = []
    for shape in finding.shapes:
        rows = best.get((finding.axis, finding.parameterization, shape.shape))
        if rows is None or shape.best_value is None:
            continue
        curves = [known[str(trial_id)] for trial_id in rows["trial_id"] if str(trial_id) in known]
        if not curves:
            continue
        steps, loss_SN = _windows(curves)
        diverged = [int(step) for step in rows["diverged_step"] if not math.isnan(step)]
        out.append(
            TrainingCurve(
                name=shape_name(shape.scale, shape.is_base),
                scale=shape.scale,
                value=shape.best_value,
                steps=tuple(steps.tolist()),
                mean=tuple(loss_SN.mean(0).tolist()),
                low=tuple(loss_SN.min(0).tolist()),
                high=tuple(loss_SN.max(0).tolist()),
                num_seeds=len(curves),
                diverged_step=min(diverged, default=None),
            )
        )
    return TrainingPanel(parameterization=finding.parameterization, curves=tuple(out))


def _windows(curves: list[Curve]) -> tuple[Floats, Floats]:
    """Return centers (N,) and losses (S, N) over windows of the steps that all seeds have."""
    steps = curves[0][0]
    for other, _ in curves[1:]:
        steps = np.intersect1d(steps, other)
    loss_SN = np.stack([values[np.isin(at, steps)] for at, values in curves])
    width = max(TAIL * (steps[-1] + 1), 1.0) if steps.size else 1.0
    bins = np.floor(steps / width).astype(int)
    _, starts, counts = np.unique(bins, return_index=True, return_counts=True)
    if not starts.size:
        return np.zeros(0), np.zeros((len(curves), 0))
    centers = np.add.reduceat(steps, starts) / counts
    return centers + 1, np.add.reduceat(loss_SN, starts, axis=1) / counts


def draw_training(info: TrainingInfo) -> Figure:
    """Return the figure: one panel per parameterization, all with the same limits of y."""
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=3.0)
        color_of = style.scale_colors(curve.scale for panel in info.panels for curve in panel.curves)
        for axes, panel in zip(grid, info.panels, strict=True):
            _draw_panel(axes, info, panel, color_of)
    return figure


def _draw_panel(axes: Axes, info: TrainingInfo, panel: TrainingPanel, color_of: Mapping[float, str]) -> None:
    axes.set_title(panel.parameterization)
    for curve in panel.curves:
        color = color_of[curve.scale]
        axes.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.18, linewidth=0)
        axes.plot(curve.steps, curve.mean, color=color, linewidth=1.6, label=f"{curve.name} at {curve.value:.2g}")
        if curve.diverged_step is not None and curve.mean:
            axes.plot(curve.steps[-1], curve.mean[-1], marker="x", color=color, markersize=8, markeredgewidth=2)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(info.y_low, info.y_high)
    axes.set_xlabel("step (log scale)")
    axes.set_ylabel(f"training loss ({info.judged.unit})")
    axes.legend(title=f"{info.scale_name}, {info.hp}", loc="best", alignment="left")


def _infos(given: HPInput) -> dict[str, Info | str]:
    results = given.results
    assert results is not None, "a table has no curves"
    known = loss_curves(best := best_cells(given.report, given.line), results.curves)
    return {axis: _with_data(training_info(given.report, axis, best, known), results, axis) for axis in given.axes}


def _with_data(info: TrainingInfo | str, results: Results, axis: str) -> TrainingInfo | str:
    """Return the info with a caption that names the shapes that train on other data than the sweep's."""
    own = {shape for shape, data in own_data(results.spec).items() if data.digest != results.spec.data.digest}
    names = [
        along.label(point.shape)
        for along in results.expansion.axes
        for point in along.points
        if along.name == axis and point.shape in own
    ]
    if isinstance(info, str) or not names:
        return info
    on_other = f" Training losses on other data are not comparable with the rest: {', '.join(names)}."
    return replace(info, caption=info.caption + on_other)


TRAINING = HPFigure(
    name="training",
    question="How does each shape train at its own best HP?",
    infos=_infos,
    draw=draw_training,
    judged_only=True,
)
