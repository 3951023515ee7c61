"""Every figure of a sweep, and why those that are missing cannot be drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from hpxfer.analysis import Analysis
from hpxfer.analysis.statistics import STATISTICS
from hpxfer.figures.chart import draw
from hpxfer.figures.charted import charted_block
from hpxfer.figures.kinds import FIGURES, HPFigure, HPInput, Info, SweepFigure
from hpxfer.figures.style import to_png, to_svg
from hpxfer.results import Results

if TYPE_CHECKING:
    import pandas as pd

_UNFIT = re.compile(r"[^\w.+-]+")  # characters that a file name should not have: users choose the names of axes


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnFigure:
    """A figure of a report: its picture as `svg` and `png`, and the data behind it as `csv`."""

    name: str  # unique in a report, and fit for a file name
    title: str  # the conclusion
    caption: str  # how to read the figure
    csv: str
    figure: Figure
    salt: str  # makes the ids in its SVG differ from those of other figures
    aside: bool  # whether it shows an HP that is not judged
    verdict_axis: str | None = None  # the axis of the verdict that it stands directly under
    leads: int | None = None  # its place among those of the statistics that the report opens with

    @cached_property
    def svg(self) -> str:
        """One `<svg>` element with a transparent ground. Text, axes and gray marks have the color `style.INK`."""
        return to_svg(self.figure, self.salt)

    @cached_property
    def png(self) -> bytes:
        """The picture as PNG on white."""
        return to_png(self.figure)


# Name, what is shown, how it is drawn, aside, and the axis of the verdict that it stands under.
_Found = tuple[str, Info | str, Callable[[Any], Figure], bool, str | None]


def all_figures(results: Results, analysis: Analysis) -> tuple[list[DrawnFigure], list[str]]:
    """Return every figure that can be drawn, the judged HP's first, and `name: reason` for every other one.

    A notebook shows `figures[0].figure`. A figure's `svg`, `png` and `csv` are made when they are asked for.

    >>> results = hpxfer.load_results("results/published/quickstart")
    >>> figures, missing = hpxfer.all_figures(results, hpxfer.analyze(results))
    >>> figures[0].name
    'transfer-lr-width'
    """
    return _drawn(_found(results, analysis), analysis)


def line_figures(analysis: Analysis, lines: Mapping[str, pd.DataFrame]) -> tuple[list[DrawnFigure], list[str]]:
    """Return every figure of a table that needs no more than its lines, as `all_figures` does.

    `lines` has the frame of each HP that was judged.
    """
    kinds = [kind for kind in FIGURES.rows() if isinstance(kind, HPFigure) and kind.of_lines]
    found = (
        figure
        for report in analysis.reports
        for figure in _of_hp(
            [kind for kind in kinds if report.hp == analysis.hp or not kind.judged_only],
            HPInput(results=None, analysis=analysis, report=report, line=lines[report.hp]),
        )
    )
    return _drawn([*found, *_of_charts(analysis)], analysis)


def _drawn(found: Iterable[_Found], analysis: Analysis) -> tuple[list[DrawnFigure], list[str]]:
    figures, missing = [], []
    leading = [f"{name}-".replace("_", "-") for name in analysis.about]
    for unfit_name, info, drawing, aside, verdict_axis in found:
        name = _UNFIT.sub("_", unfit_name)
        if isinstance(info, str):
            missing.append(f"{name}: {info}")
            continue
        figures.append(
            DrawnFigure(
                name=name,
                title=info.title,
                caption=info.caption,
                csv=info.table().to_csv(index=False, lineterminator="\n"),
                figure=drawing(info),
                salt=f"hpxfer {analysis.sweep} {name}",
                aside=aside,
                verdict_axis=verdict_axis,
                leads=None if aside else next((i for i, of in enumerate(leading) if f"{name}-".startswith(of)), None),
            )
        )
    return figures, missing


def _found(results: Results, analysis: Analysis) -> Iterator[_Found]:
    kinds = FIGURES.rows()
    of_hps = [kind for kind in kinds if isinstance(kind, HPFigure)]
    for report in analysis.reports:
        line = results.line(report.hp, report.loss)
        given = HPInput(results=results, analysis=analysis, report=report, line=line)
        if report.findings:
            yield from _of_hp([kind for kind in of_hps if not kind.judged_only], given)
        if report.hp == analysis.hp:
            yield from _of_hp([kind for kind in of_hps if kind.judged_only], given)
    for kind in kinds:
        if isinstance(kind, SweepFigure):
            for end, info in kind.infos(results, analysis).items():
                name = f"{kind.name}-{end}" if end else kind.name
                yield name, info, kind.draw, False, None
    yield from _of_charts(analysis)


def _of_charts(analysis: Analysis) -> Iterator[_Found]:
    """Yield the figures of statistics that come with a chart."""
    for name, found in analysis.statistics.items():
        if found.chart is not None:
            yield name, charted_block(STATISTICS.get(name), found, analysis.judged, analysis.control), draw, False, None


def _of_hp(kinds: Sequence[HPFigure], given: HPInput) -> Iterator[_Found]:
    """Yield the figures of one HP, axis by axis."""
    found = [(kind, kind.infos(given)) for kind in kinds]
    hp = given.report.hp
    for axis in given.axes:
        for kind, infos in found:
            if axis in infos:
                name = f"{kind.name}-{axis}" if kind.judged_only else f"{kind.name}-{hp}-{axis}"
                aside = hp != given.analysis.hp
                yield name, infos[axis], kind.draw, aside, axis if kind.under_verdict and not aside else None
