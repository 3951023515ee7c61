"""Write a check to files: figures, the table as text, and the verdicts with their provenance as JSON."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import matplotlib
import torch
from matplotlib.figure import Figure

import hpxfer
from hpxfer.coordinates.figure import figures
from hpxfer.coordinates.report import CheckReport
from hpxfer.host import text_writer, write_folder

WHAT = "check"
PNG_DPI = 130


def write_check(report: CheckReport, folder: Path) -> list[Path]:
    """Write check.txt, check.json and the figures to `folder`, and return their paths."""
    data = {**report.to_dict(lines=False), "provenance": provenance()}
    texts = {"check.txt": report.table(), "check.json": json.dumps(data, allow_nan=False)}
    writers = {folder / name: text_writer(text) for name, text in texts.items()}
    return write_folder({**writers, **figure_writers(report, folder)}, folder, WHAT)


def provenance() -> dict[str, Any]:
    """Return the time and the versions."""
    return {
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hpxfer": hpxfer.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def figure_writers(report: CheckReport, folder: Path) -> dict[Path, Callable[[IO[bytes]], object]]:
    """Return what writes every figure of a report as PNG and SVG, by path. Equal reports give equal bytes."""
    return {
        folder / f"{name}.{kind}": partial(_save, figure, kind)
        for axis in report.axes
        for name, figure in figures(report, axis)
        for kind in ("png", "svg")
    }


def _save(figure: Figure, kind: str, file: IO[bytes]) -> None:
    with matplotlib.rc_context({"svg.hashsalt": "hpxfer"}):
        figure.savefig(file, format=kind, dpi=PNG_DPI, metadata={"Date": None} if kind == "svg" else {})
