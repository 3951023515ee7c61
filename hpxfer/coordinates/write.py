"""Write a check to files: figures, the table as text, and the verdicts with their provenance as JSON."""

from __future__ import annotations

import datetime
import json
import platform
from pathlib import Path
from typing import Any

import torch

import hpxfer
from hpxfer.coordinates.report import CheckReport
from hpxfer.coordinates.save import figure_writers
from hpxfer.host import text_writer, write_folder

WHAT = "check"


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
