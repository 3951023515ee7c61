"""Write a check to files: figures, the table as text, and the verdicts with their provenance as JSON."""

from __future__ import annotations

import datetime
import json
import platform
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

import hpxfer
from hpxfer.coordinates.report import CheckReport
from hpxfer.coordinates.save import save_check
from hpxfer.errors import HpxferError
from hpxfer.host.files import write_files


def write_check(report: CheckReport, folder: Path) -> list[Path]:
    """Write check.txt, check.json and the figures to `folder`, and return their paths."""
    make_folder(folder)
    data = {**report.to_dict(lines=False), "provenance": provenance()}
    texts = {"check.txt": report.table(), "check.json": json.dumps(data, allow_nan=False)}
    try:
        write_files({folder / name: partial(_write, text + "\n") for name, text in texts.items()})
    except OSError as error:
        raise _not_written(folder, error) from None
    return [*(folder / name for name in texts), *save_check(report, folder)]


def make_folder(folder: Path) -> None:
    """Make the folder. Raise HpxferError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from None


def provenance() -> dict[str, Any]:
    """Return the time and the versions."""
    return {
        "finished_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hpxfer": hpxfer.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _not_written(folder: Path, error: OSError) -> HpxferError:
    return HpxferError(f"{folder}: the check cannot be written: {error.strerror}; choose another folder with --output")


def _write(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())
