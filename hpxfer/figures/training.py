"""Training curves: loss over steps of every shape at its own best HP, a panel a parameterization, a color a scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from hpxfer.analysis import Finding, TransferReport
from hpxfer.analysis.text import scale_text
from hpxfer.figures import style
from hpxfer.figures.words import along, listed

METRIC = "train_loss_nats"
TAIL = 0.02  # of the run: curves are shown as means over windows of so many steps
HEADROOM = 0.6  # of the fall that is shown: the first steps, near log of the vocabulary, tell no shapes apart


@dataclass(frozen=True, kw_only=True)
class TrainingCurve:
    """One shape at one HP: mean, lowest and highest loss over seeds in nats, as far as all seeds went."""

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
    """The curves of one axis."""

    title: str
    axis: str
    scale_name: str
    hp: str
    y_low: float
    y_high: float
    panels: tuple[TrainingPanel, ...]
    caption: str = (
        "Training loss at the HP of the grid that is best at each shape: means over seeds and over windows of 2% of "
        "the steps; the band is the range of seeds, a cross a divergence."
    )

    def table(self) -> pd.DataFrame:
        """Return the points drawn, a row each."""
        rows = [
            (self.axis, panel.parameterization, one.scale, one.value, *point)
            for panel in self.panels
            for one in panel.curves
            for point in zip(one.steps, one.mean, one.low, one.high, strict=True)
        ]
        columns = ["axis", "parameterization", self.scale_name, self.hp, "step", "mean_nats", "min_nats", "max_nats"]
        return pd.DataFrame(rows, columns=columns)


Floats = NDArray[np.float64]
Curves = Mapping[str, tuple[Floats, Floats]]


Key = tuple[str, str, str]  # axis, parameterization, shape


def best_cells(report: TransferReport, cells: pd.DataFrame) -> dict[Key, pd.DataFrame]:
    """Return the cells of every shape at its own best HP that have a result.

    `cells` are rows of the line with `value` and `trial_id`, as `hpxfer.analysis.gather.line_cells` gives them.
    """
    value_of = {
        (one.axis, one.parameterization, shape.shape): shape.best_value
        for one in report.findings
        for shape in one.shapes
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
    """Return trial_id -> (steps ascending, training losses in nats) of these cells; `curves` as in `Results`."""
    wanted = {str(one) for rows in best.values() for one in rows["trial_id"]}
    kept = curves[(curves["metric"] == METRIC).to_numpy() & curves["trial_id"].isin(wanted).to_numpy()]
    kept = kept.sort_values("step", kind="stable")
    return {
        str(trial_id): (rows["step"].to_numpy(float), rows["value"].to_numpy(float))
        for trial_id, rows in kept.groupby("trial_id", observed=True)
    }


def training_info(
    report: TransferReport, axis: str, best: Mapping[Key, pd.DataFrame], known: Curves
) -> TrainingInfo | str:
    """Return what the figure of one axis shows, or why there is none; see `best_cells` and `loss_curves`."""
    findings = along(report.findings, axis)
    panels = tuple(panel for one in findings if (panel := _panel(one, best, known)).curves)
    if not panels:
        return f"no best trial along {axis} has a loss curve"
    every = [one for panel in panels for one in panel.curves if one.mean]
    low = min((min(one.low) for one in every), default=0.0)
    high = max((one.mean[0] for one in every), default=1.0)
    ends = max((one.mean[-1] for one in every), default=1.0)
    return TrainingInfo(
        title=f"Training along {axis} at each shape's best {report.hp}: {listed([_said(one) for one in panels])}",
        axis=axis,
        scale_name=findings[0].scale_name,
        hp=report.hp,
        y_low=low - 0.04 * (high - low),
        y_high=max(low + HEADROOM * (high - low), ends),
        panels=panels,
    )


def _said(panel: TrainingPanel) -> str:
    known = [one for one in panel.curves if one.mean]
    if not known:
        return f"{panel.parameterization} unknown"
    first, last = known[0], known[-1]
    if first is last:
        return f"{panel.parameterization} ends at {last.mean[-1]:.2f} ({scale_text(last.scale)})"
    ends = f"{first.mean[-1]:.2f} ({scale_text(first.scale)}) to {last.mean[-1]:.2f} ({scale_text(last.scale)})"
    return f"{panel.parameterization} ends at {ends}"


def _panel(finding: Finding, best: Mapping[Key, pd.DataFrame], known: Curves) -> TrainingPanel:
    out = []
    for shape in finding.shapes:
        rows = best.get((finding.axis, finding.parameterization, shape.shape))
        if rows is None or shape.best_value is None:
            continue
        runs = [known[str(one)] for one in rows["trial_id"] if str(one) in known]
        if not runs:
            continue
        steps, loss_SN = _windows(runs)
        diverged = [int(one) for one in rows["diverged_step"] if not math.isnan(one)]
        out.append(
            TrainingCurve(
                name=scale_text(shape.scale) + (" (base)" if shape.is_base else ""),
                scale=shape.scale,
                value=shape.best_value,
                steps=tuple(steps.tolist()),
                mean=tuple(loss_SN.mean(0).tolist()),
                low=tuple(loss_SN.min(0).tolist()),
                high=tuple(loss_SN.max(0).tolist()),
                num_seeds=len(runs),
                diverged_step=min(diverged, default=None),
            )
        )
    return TrainingPanel(parameterization=finding.parameterization, curves=tuple(out))


def _windows(runs: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return centers (N,) and losses (S, N) over windows of the steps that all seeds have."""
    steps = runs[0][0]
    for other, _ in runs[1:]:
        steps = np.intersect1d(steps, other)
    loss_SN = np.stack([values[np.isin(at, steps)] for at, values in runs])
    width = max(TAIL * (steps[-1] + 1), 1.0) if steps.size else 1.0
    bins = np.floor(steps / width).astype(int)
    _, starts, counts = np.unique(bins, return_index=True, return_counts=True)
    if not starts.size:
        return np.zeros(0), np.zeros((len(runs), 0))
    centers = np.add.reduceat(steps, starts) / counts
    return centers + 1, np.add.reduceat(loss_SN, starts, axis=1) / counts


def draw_training(info: TrainingInfo) -> Figure:
    """Return the figure: a panel a parameterization, on equal axes."""
    with style.look():
        figure, grid = style.panels(info.title, len(info.panels), height=3.0)
        color_of = style.scale_colors(one.scale for panel in info.panels for one in panel.curves)
        for axes, panel in zip(grid, info.panels, strict=True):
            _draw_panel(axes, info, panel, color_of)
    return figure


def _draw_panel(axes: Axes, info: TrainingInfo, panel: TrainingPanel, color_of: Mapping[float, str]) -> None:
    axes.set_title(panel.parameterization)
    for one in panel.curves:
        color = color_of[one.scale]
        label = f"{one.name} at {one.value:.2g}"
        axes.fill_between(one.steps, one.low, one.high, color=color, alpha=0.18, linewidth=0)
        axes.plot(one.steps, one.mean, color=color, linewidth=1.6, label=label)
        if one.diverged_step is not None and one.mean:
            axes.plot(one.steps[-1], one.mean[-1], marker="x", color=color, markersize=8, markeredgewidth=2)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(info.y_low, info.y_high)
    axes.set_xlabel("step (log scale)")
    axes.set_ylabel("training loss (nats)")
    axes.legend(title=f"{info.scale_name}, {info.hp}", loc="best", alignment="left")
