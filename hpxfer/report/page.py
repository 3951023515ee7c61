"""The summary of a sweep on one page: headline, main figure, intervals, control, cost, date and version.

The main figure is the transfer figure, or the contours of two HPs that were refined together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

import hpxfer
from hpxfer.figures import Panel, TransferInfo, style, transfer_info
from hpxfer.figures.search_contours import MOST_PANELS, ContoursInfo, contours_info, draw_contour_panels
from hpxfer.figures.style import FONT, SMALL
from hpxfer.figures.transfer_draw import draw_rows, rows_of
from hpxfer.host.output import aligned
from hpxfer.report.contents import Card, Report, Section
from hpxfer.report.joint import joint_table
from hpxfer.verdict.findings import Finding, Verdict
from hpxfer.verdict.text import (
    NOTHING,
    chance_text,
    interval_text,
    move_interval,
    optimum_text,
    regret_number_text,
)

WIDTH, HEIGHT = 8.27, 11.69  # inches, A4
MARGIN = 0.35  # inches
PANEL_INCHES = 3.1  # the height of a row of panels, at most
LEGEND_INCHES = 0.9
MOST_AXES = 3  # whose panels fit on the page
COLUMNS = 3  # of contours
CONTOUR_CHARACTERS = 30  # in a line of the title of one panel of contours
MOST_CARDS = 12  # rows of the table
HEADLINE_CHARACTERS = 74
FACT_CHARACTERS = 138
HEADLINE, TABLE, FACT = FONT + 2, 6.8, SMALL - 1.5  # points; a wide table is smaller
MONO = 0.635  # the width of a character of the table, in its size; small letters are rounded up to whole pixels
LEADING = 1.45  # from one line of text to the next, in its size
# A verdict's shape, and its color, which says nothing that the shape and the word do not.
BADGES: dict[Verdict, tuple[str, str]] = {
    "transfers": ("o", "#1a7f4b"),
    "drifts": ("^", "#b3261e"),
    "undecided": ("D", "#8a5a00"),
    "stays": ("s", "#0b5cad"),
}


def draw_page(section: Section, *, whole: bool = True) -> Figure:
    """Return the page on one sweep: a whole sheet, or one that ends where its content ends."""
    shown = _shown(section)
    headline = style.wrapped(section.headline, HEADLINE_CHARACTERS).splitlines()
    facts = [line for fact in _facts(section, shown) for line in style.wrapped(fact, FACT_CHARACTERS).splitlines()]
    joint = section.analysis.found("joint_optima")
    table = _indented(joint_table(joint)) if joint else _table(section.cards)
    points = min(TABLE, (WIDTH - 2 * MARGIN) * 72 / (MONO * max(map(len, table))))
    head = 0.3 + _inches(len(headline), HEADLINE) + 0.2
    foot = _inches(len(table), points) + 0.2 + _inches(len(facts), FACT)
    rest = HEIGHT - 2 * MARGIN - head - foot
    middle = 0.2 if shown is None else min(rest, PANEL_INCHES * _num_rows(shown) + LEGEND_INCHES)
    with style.look():
        heights = (MARGIN + head, middle, foot, MARGIN + (rest - middle if whole else 0.0))
        figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained", facecolor="white")
        parts = figure.subfigures(4, 1, height_ratios=heights, squeeze=False)[:, 0]
        _draw_text(parts[0], MARGIN, [f"hpxfer report: {section.name}"], SMALL)
        _draw_text(parts[0], MARGIN + 0.3, headline, HEADLINE, fontweight="bold")
        if isinstance(shown, TransferInfo):
            _draw_transfer(parts[1], shown)
        elif shown is not None:
            _draw_contours(parts[1], shown)
        _draw_table(parts[2], table, section.cards, points)
        _draw_text(parts[2], _inches(len(table), points) + 0.2, facts, FACT)
    return figure


def _inches(num_lines: int, points: float) -> float:
    return num_lines * points * LEADING / 72


def _draw_text(part: SubFigure, down: float, lines: Sequence[str], points: float, **look: Any) -> None:
    """Write lines, the first one so many inches below the top of a part of the page."""
    for number, line in enumerate(lines):
        y = 1 - (down + _inches(number, points)) / _height(part)
        part.text(MARGIN / WIDTH, y, line, fontsize=points, va="top", **look)


def _height(part: SubFigure) -> float:
    """Return the height of a part in inches."""
    return float(part.bbox.height / part.dpi)


def to_png(report: Report) -> bytes:
    """Return the page on a report's only sweep."""
    return style.to_png(draw_page(report.sections[0], whole=False))


def to_pdf(report: Report) -> bytes:
    """Return a document with one page per sweep.

    Equal reports give pages that look the same. Their bytes may differ, as the layout rounds its last digits anew.
    """
    out = BytesIO()
    nothing = {"CreationDate": None, "Creator": None, "Producer": None}
    with matplotlib.rc_context({"pdf.fonttype": 42}), PdfPages(out, metadata=nothing) as pages:
        for section in report.sections:
            figure = draw_page(section)
            with style.look():
                pages.savefig(figure)
    return out.getvalue()


def _shown(section: Section) -> TransferInfo | ContoursInfo | None:
    """Return what the main figure of the page shows, or None if there is nothing to show."""
    analysis = section.analysis
    if joint := analysis.found("joint_optima"):
        contours = contours_info(joint)
        return None if isinstance(contours, str) else contours
    report = next((report for report in analysis.reports if report.hp == analysis.hp), None)
    info = None if report is None or section.line is None else transfer_info(report, section.line)
    return None if info is None or not info.panels else _most_telling(info)


def _num_rows(info: TransferInfo | ContoursInfo) -> int:
    """Return the number of rows of panels."""
    return len(rows_of(info)) if isinstance(info, TransferInfo) else -(-min(len(info.panels), MOST_PANELS) // COLUMNS)


def _most_telling(info: TransferInfo) -> TransferInfo:
    """Return the axes that fit on the page: first those on which parameterizations differ in their verdict."""

    def verdicts_agree(row: Sequence[Panel]) -> bool:
        return len({panel.verdict for panel in row}) == 1

    rows = sorted(info.rows, key=verdicts_agree)[:MOST_AXES]
    return replace(info, panels=tuple(panel for row in rows for panel in row))


def _draw_transfer(middle: SubFigure, info: TransferInfo) -> None:
    rows = rows_of(info)
    columns = max(len(row) for row in rows)
    grid = middle.subplots(len(rows), columns, squeeze=False).flatten().tolist()
    for axes in grid:
        style.set_up(axes)
    draw_rows(middle, grid, info)


def _draw_contours(middle: SubFigure, info: ContoursInfo) -> None:
    number = min(len(info.panels), MOST_PANELS)
    grid = middle.subplots(_num_rows(info), min(number, COLUMNS), squeeze=False).flatten().tolist()
    for axes in grid[number:]:
        axes.remove()
    for axes in grid[:number]:
        style.set_up(axes)
    draw_contour_panels(middle, grid[:number], info, CONTOUR_CHARACTERS)


def _draw_table(part: SubFigure, lines: Sequence[str], cards: Sequence[Card], points: float) -> None:
    """Write the table, with the shape of each verdict before its row."""
    _draw_text(part, 0.0, lines, points, family="DejaVu Sans Mono")
    for number, card in enumerate(cards[:MOST_CARDS], 1):
        marker, color = BADGES[card.finding.verdict]
        y = 1 - (_inches(number, points) + 0.55 * points / 72) / _height(part)
        mark = Line2D([(MARGIN + 0.06) / WIDTH], [y], marker=marker, color=color, markersize=5.5, linestyle="none")
        part.add_artist(mark)


def _table(cards: Sequence[Card]) -> list[str]:
    """Return the verdicts as aligned text, with the intervals of the optima and of their move."""
    titles = ("axis", "parameterization", "verdict", "base: optimum, 95%", "largest: optimum, 95%")
    head = (*titles, "move, octaves, 95%", cards[0].finding.judged.given_up if cards else "", "probability")
    rows = [head, *(_row(card.finding) for card in cards[:MOST_CARDS])]
    more = [f"and {len(cards) - MOST_CARDS} more verdicts"] if len(cards) > MOST_CARDS else []
    return _indented([*aligned(rows), *more])


def _indented(lines: Sequence[str]) -> list[str]:
    """Return the lines of a table with room for the shape of a verdict before them."""
    return [f"   {line}" for line in lines]


def _row(finding: Finding) -> tuple[str, ...]:
    ends = [next((shape for shape in finding.shapes if shape.is_base), None)]
    ends.append(max(finding.shapes, key=lambda shape: shape.scale, default=None))
    optima = [NOTHING if end is None else f"{optimum_text(end.optimum)} [{interval_text(end.optimum)}]" for end in ends]
    worst = finding.worst
    return (
        finding.axis,
        finding.parameterization + (" (control)" if finding.is_control else ""),
        finding.verdict,
        *optima,
        move_interval(finding) or NOTHING,
        NOTHING if worst is None else regret_number_text(worst, finding.judged),
        chance_text(finding) or NOTHING,
    )


def _facts(section: Section, info: TransferInfo | ContoursInfo | None) -> list[str]:
    """Return why there is no verdict, the control, the cost, the date and the version, and how to read the page."""
    known = {str(name): str(value) for name, value in section.provenance.rows}
    without = "none in this sweep, so that it is not known whether an axis moves any optimum"
    rows = info.rows if isinstance(info, TransferInfo) else ()
    left_out = len({card.finding.axis for card in section.cards}) - len(rows)
    figures = f" {left_out} more axes are in report.html." if rows and left_out else ""
    return [
        *([section.no_verdict] if section.no_verdict else []),
        f"Control: {', '.join(section.controls) or without}.",
        f"Cost: {section.progress} Training took {known['training time']}; device: {known.get('device', 'unknown')}.",
        f"Trained {known.get('trained', 'at an unknown date')}; data {known['data']}; hpxfer {hpxfer.__version__}.",
        f"{section.question} {'' if info is None else info.caption} +- is one standard error.{figures}",
    ]
