"""Doubt against FLOPs: how sure each verdict was while the trials of a search came in, and what the rest bought."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from hpxfer.analysis import Analysis
from hpxfer.figures import style
from hpxfer.figures.kinds import Info, SweepFigure
from hpxfer.figures.style import FAINT, INK
from hpxfer.figures.text import control_last, listed
from hpxfer.model.cost import relative_cost
from hpxfer.results import Results
from hpxfer.scaling.shape import Shape
from hpxfer.search.kinds import kind_of
from hpxfer.search.verdict_lines import Doubt, all_flops, doubts, lines_of_grid
from hpxfer.store.schema import shape_of_row
from hpxfer.verdict.findings import Verdict
from hpxfer.verdict.loss_grid import loss_grids
from hpxfer.verdict.rules import Rules
from hpxfer.verdict.thresholds import CONTROL

MOST_PANELS = 6
LOOKS = 8  # at the trials of a sweep, at equal steps of FLOPs
LEAST = 1e-4  # smaller doubts are drawn here: no estimate is that sure
MOST = 0.5  # the doubt where nothing is known
TICKS = (LEAST, 1e-3, 1e-2, 1e-1, MOST)


@dataclass(frozen=True, kw_only=True)
class DoubtPath:
    """How the doubt about one verdict fell. `points` are (share of the grid's FLOPs that was spent, doubt)."""

    panel: str  # the axis, or what else is compared in one panel
    name: str  # the parameterization, or the search
    points: tuple[tuple[float, float], ...]
    verdict: Verdict | None = None  # at the end


@dataclass(frozen=True, kw_only=True)
class DoubtInfo:
    """The paths, and the doubt at which a verdict is said."""

    title: str
    caption: str
    error: float
    paths: tuple[DoubtPath, ...]
    control: str | None = CONTROL
    unit: str = "FLOPs"  # of what was spent

    def table(self) -> pd.DataFrame:
        """Return one row per look."""
        rows = [(path.panel, path.name, share, doubt) for path in self.paths for share, doubt in path.points]
        return pd.DataFrame(rows, columns=["axis", "parameterization", "share_of_grid_flops", "doubt"])


def doubt_paths(results: Results, rules: Rules) -> tuple[DoubtPath, ...]:
    """Return the path of each verdict on the judged HP: looks at the trials in the order in which they ended."""
    line = results.line()
    spent = _spent(results, set(line["trial_id"]))
    grid = _flops_of_grid(results)
    if line.empty or not spent:
        return ()
    shapes: dict[tuple[str, str], set[str]] = {}
    for axis, name, shape in zip(line["axis"], line["parameterization"], line["shape"], strict=True):
        shapes.setdefault((axis, name), set()).add(shape)
    out: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in shapes}
    last: Mapping[tuple[str, str], Doubt] = {}
    total = spent[-1][1]
    for step in range(1, LOOKS + 1):
        ended = {trial_id for trial_id, flops in spent if flops <= total * step / LOOKS * (1 + 1e-9)}
        last = _doubts(line[line["trial_id"].isin(ended)], shapes, rules)
        for key, points in out.items():
            points.append((total * step / LOOKS / grid, last[key].size if key in last else MOST))
    return tuple(
        DoubtPath(
            panel=axis,
            name=name,
            points=tuple(points),
            verdict=last[axis, name].verdict if (axis, name) in last else None,
        )
        for (axis, name), points in out.items()
    )


def _spent(results: Results, wanted: set[str]) -> list[tuple[str, float]]:
    """Return (trial id, FLOPs spent when it had ended) in the order in which the wanted trials ended."""
    trials = results.trials[results.trials["trial_id"].isin(wanted) & (results.trials["status"] != "failed")]
    out, total, known = [], 0.0, dict[Shape, float]()
    for row in trials.sort_values(["finished_at", "trial_id"]).to_dict("records"):
        shape = shape_of_row(row)
        if shape not in known:
            known[shape] = relative_cost(shape, results.expansion.setting_at(shape))
        total += known[shape]
        out.append((str(row["trial_id"]), total))
    return out


def _flops_of_grid(results: Results) -> float:
    """Return the FLOPs of every trial of the grid's lines of the judged HP."""
    lines = (line for line in lines_of_grid(results.expansion) if line.hp == results.spec.judged_hp)
    return sum(all_flops(lines).values())


def _doubts(
    line: pd.DataFrame, shapes: Mapping[tuple[str, str], set[str]], rules: Rules
) -> dict[tuple[str, str], Doubt]:
    """Return the doubt about each verdict whose shapes all have a trial."""
    grids = [
        grid
        for grid in (loss_grids(line) if len(line) else ())
        if {row.shape for row in grid.rows} == shapes[grid.key] and any(row.is_base for row in grid.rows)
    ]
    return {doubt.finding.key: doubt for doubt in doubts(grids, rules)} if grids else {}


def doubt_info(
    paths: Sequence[DoubtPath], error: float, unit: str = "FLOPs", control: str | None = CONTROL
) -> DoubtInfo | str:
    """Return what the figure shows, or why there is none."""
    if all(doubt == MOST for path in paths for _, doubt in path.points):
        return "no shape has been compared with the base yet"
    said = [
        f"{path.name} along {path.panel} {path.verdict}" for path in paths if path.verdict not in (None, "undecided")
    ]
    spent = max(share for path in paths for share, _ in path.points)
    return DoubtInfo(
        title=f"After {spent:.0%} of the {unit} of the whole grid: {listed(said, 3) if said else 'nothing is decided'}",
        caption="Doubt is the chance of being wrong if the likelier verdict were said at that moment. It is 0.5 where "
        f"nothing is known. A verdict is said below the dashed line. The {unit} are those of the trials that had "
        "ended, as a share of what the grid of the sweep file takes with all its seeds and parameterizations.",
        error=error,
        paths=tuple(paths),
        control=control,
        unit=unit,
    )


def draw_doubt(info: DoubtInfo) -> Figure:
    """Return the figure: one panel per axis."""
    panels = list(dict.fromkeys(path.panel for path in info.paths))[:MOST_PANELS]
    names = sorted({path.name for path in info.paths}, key=lambda name: control_last(name, info.control))
    look_of = style.marks(names, info.control)
    furthest = max(1.0, *(share for path in info.paths for share, _ in path.points))
    with style.look():
        figure, grid = style.panels(info.title, len(panels), height=2.9, foot=0.55)
        for axes, panel in zip(grid, panels, strict=True):
            axes.set_title(panel)
            for path in info.paths:
                if path.panel == panel:
                    color, marker = look_of[path.name]
                    x, y = ([point[i] for point in path.points] for i in range(2))
                    shown = [max(LEAST, doubt) for doubt in y]
                    axes.plot(x, shown, color=color, marker=marker, markersize=4, drawstyle="steps-post")
            _frame(axes, info, furthest)
        style.legend_below(figure, list(_handles(names, look_of, info.error)), columns=4)
    return figure


def _frame(axes: Axes, info: DoubtInfo, furthest: float) -> None:
    axes.axhline(info.error, color=INK, alpha=FAINT, linestyle="--", linewidth=1.2)
    axes.axvline(1.0, color=INK, alpha=FAINT, linestyle=":", linewidth=1.2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda doubt, _: f"{doubt:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0.7 * LEAST, 1.4 * MOST)
    axes.set_xlim(0.0, 1.03 * furthest)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(f"{info.unit} spent, as a share of the whole grid")
    axes.set_ylabel("doubt: chance of a wrong verdict")


def _handles(names: Sequence[str], look_of: Mapping[str, tuple[str, str]], error: float) -> Iterator[Line2D]:
    for name in names:
        color, marker = look_of[name]
        yield Line2D([], [], color=color, marker=marker, markersize=4, label=name)
    yield Line2D([], [], color=INK, alpha=FAINT, linestyle="--", label=f"said below {error:g}")


def _infos(results: Results, analysis: Analysis) -> dict[str, Info | str]:
    kind = kind_of(results.spec)
    if kind.lists_trials or kind.tunes != "lines" or results.why_no_line() is not None:
        return {}  # a grid trains in the order that fills the workers: its path says nothing about the grid
    rules = results.rules
    unit = "FLOPs" if results.spec.trainer is None else "tokens"  # see `relative_cost`
    return {"": doubt_info(doubt_paths(results, rules), rules.error, unit, rules.control)}


DOUBT = SweepFigure(name="doubt", question="How sure was each verdict, at which cost?", infos=_infos, draw=draw_doubt)
