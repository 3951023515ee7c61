"""Training curves: loss over steps of each shape at its own best HP, one panel per parameterization."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from hpxfer.analysis import TransferReport
from hpxfer.analysis.statistics.transferred import Curve, curves_by_trial
from hpxfer.figures import style
from hpxfer.figures.chart import CUT, LATE, Block, Chart, Line, draw, late_ends
from hpxfer.figures.kinds import HPFigure, HPInput, Info
from hpxfer.figures.text import along, listed, shape_name
from hpxfer.host import scale_text
from hpxfer.results import Results
from hpxfer.spec import own_data

METRIC = "train_loss_nats"
TAIL = 0.02  # fraction of the run: curves are shown as means over windows of so many steps

Floats = NDArray[np.float64]


def best_cells(report: TransferReport, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of each shape at its own best HP that have a result.

    `cells` is the line of the HP, as `Results.line` gives it.
    """
    keys = ["axis", "parameterization", "shape", "value"]
    best = [
        (finding.axis, finding.parameterization, shape.shape, shape.best_value)
        for finding in report.findings
        for shape in finding.shapes
        if shape.best_value is not None
    ]
    known = cells[cells["status"].isin(["finished", "diverged"])]
    return known.merge(pd.DataFrame(best, columns=keys).astype({"value": float}), on=keys)


def training_block(report: TransferReport, axis: str, best: pd.DataFrame, curves: pd.DataFrame) -> Block | str:
    """Return what the figure of one axis shows, or why there is none. `best` are the `best_cells`."""
    findings = along(report.findings, axis, report.control)
    known = curves_by_trial(curves, METRIC, set(best["trial_id"]))
    scale = findings[0].scale_name
    parts, names, scales, ends = [], {}, {}, dict[str, list[str]]()
    for finding in findings:
        for shape in finding.shapes:
            at = (best["parameterization"] == finding.parameterization) & (best["shape"] == shape.shape)
            rows = best[at & (best["axis"] == axis)]
            found = [known[trial] for trial in rows["trial_id"] if trial in known]
            if not found:
                continue
            steps, loss_SN = windows(found)
            mean = loss_SN.mean(0)
            part = {"axis": axis, "arm": finding.parameterization, "shape": shape.shape, "scale": shape.scale}
            part |= {"hp": shape.best_value, "step": steps, "mean_nats": mean}
            part |= {"min_nats": loss_SN.min(0), "max_nats": loss_SN.max(0)}
            part["cross"] = np.arange(steps.size) == (steps.size - 1 if rows["diverged_step"].notna().any() else -1)
            parts.append(pd.DataFrame(part))
            key = finding.parameterization, shape.shape
            scales[key] = shape.scale
            names[key] = f"{shape_name(shape.scale, shape.is_base)} at {shape.best_value:.2g}"
            said = ends.setdefault(finding.parameterization, [])
            said += [f"{mean[-1]:.2f} ({scale_text(shape.scale)})"] if mean.size else []
    if not (every := [part for part in parts if len(part)]):
        return f"no best trial along {axis} has a loss curve"
    start = min(part["step"].iloc[-1] for part in every) / LATE
    x_ends, y_ends = late_ends(pd.concat(every), "step", start)
    color_of = style.scale_colors(scales.values())

    def finish(axes: Axes) -> None:
        style.log_steps(axes)
        style.set_axes(axes, "step (log scale)", f"training loss ({report.judged.unit})", x_ends=x_ends, y_ends=y_ends)

    return Block(
        title=f"Training along {axis} at each shape's best {report.hp}: "
        f"{listed([_ends(name, said) for name, said in ends.items()])}",
        caption="Training loss at the HP of the grid that is best at each shape, as means over seeds and over windows "
        f"of 2% of the steps. The band is the range of seeds, and a cross is a divergence. {CUT}",
        frame=pd.concat(parts, ignore_index=True),
        headings={
            "axis": "axis",
            "arm": "parameterization",
            "scale": scale,
            "hp": report.hp,
            "step": "step",
            **{name: name for name in ("mean_nats", "min_nats", "max_nats")},
        },
        charts=(
            Chart(
                x="step",
                lines=(Line(y="mean_nats", low="min_nats", high="max_nats", cross="cross"),),
                color=("arm", "shape"),
                panel="arm",
                looks={key: (color_of[scales[key]], "") for key in sorted(scales, key=lambda key: scales[key])},
                names=names,
                legend="panel",
                legend_title=f"{scale}, {report.hp}",
                finish=lambda axes, *_: finish(axes),
            ),
        ),
        judged=report.judged,
        height=3.0,
        foot=0.5,
    )


def _ends(name: str, ends: list[str]) -> str:
    if not ends:
        return f"{name} unknown"
    return f"{name} ends at {ends[0]}" + (f" to {ends[-1]}" if len(ends) > 1 else "")


def windows(curves: list[Curve]) -> tuple[Floats, Floats]:
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


def _infos(given: HPInput) -> dict[str, Info | str]:
    results = given.results
    assert results is not None, "a table has no curves"
    if not given.report.findings:  # without a verdict no shape has a best HP
        return {}
    best = best_cells(given.report, given.line)
    return {
        axis: _with_data(training_block(given.report, axis, best, results.curves), results, axis) for axis in given.axes
    }


def _with_data(block: Block | str, results: Results, axis: str) -> Block | str:
    """Return the block with a caption that names the shapes that train on other data than the sweep's."""
    own = {shape for shape, data in own_data(results.spec).items() if data.digest != results.spec.data.digest}
    names = [
        along.label(point.shape)
        for along in results.expansion.axes
        for point in along.points
        if along.name == axis and point.shape in own
    ]
    if isinstance(block, str) or not names:
        return block
    on_other = f" Training losses on other data are not comparable with the rest: {', '.join(names)}."
    return replace(block, caption=block.caption + on_other)


TRAINING = HPFigure(
    name="training",
    question="How does each shape train at its own best HP?",
    infos=_infos,
    draw=draw,
    judged_only=True,
)
