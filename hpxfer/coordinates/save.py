"""The figures of a check as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

import matplotlib
from matplotlib.figure import Figure

from hpxfer.coordinates.figure import check_info, draw_check
from hpxfer.coordinates.mlp.layers_figure import draw_layers, layers_info
from hpxfer.coordinates.mlp.limit_figure import draw_limit, has_figure
from hpxfer.coordinates.mlp.papers_figure import draw_papers, papers_info
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.coordinates.style import PNG_DPI


def figure_writers(report: CheckReport, folder: Path) -> dict[Path, Callable[[IO[bytes]], object]]:
    """Return what writes every figure of a report as PNG and SVG, by path. Equal reports give equal bytes."""
    return {
        folder / f"{name}.{kind}": partial(_save, figure, kind)
        for axis in report.axes
        for name, figure in _figures(report, axis)
        for kind in ("png", "svg")
    }


def _figures(report: CheckReport, axis: AxisReport) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) of an axis. The family mlp has those of its papers too."""
    yield f"check-{axis.axis}", draw_check(check_info(report, axis))
    if report.architecture == "mlp":
        yield f"check-{axis.axis}-papers", draw_papers(papers_info(report, axis))
        yield f"check-{axis.axis}-layers", draw_layers(layers_info(report, axis))
    if has_figure(axis.limit):
        yield f"check-{axis.axis}-limit", draw_limit(report, axis)


def _save(figure: Figure, kind: str, file: IO[bytes]) -> None:
    with matplotlib.rc_context({"svg.hashsalt": "hpxfer"}):
        figure.savefig(file, format=kind, dpi=PNG_DPI, metadata={"Date": None} if kind == "svg" else {})
