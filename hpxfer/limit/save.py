"""Write a limit to files: the text, its numbers as JSON, and its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DPI = 150


def save(folder: Path, text: str, numbers: Mapping[str, Any], figures: Mapping[str, Figure]) -> list[Path]:
    """Write limit.txt, limit.json and every figure (PNG, SVG), and return the paths. Equal limits give equal bytes."""
    texts = {"limit.txt": text, "limit.json": json.dumps(numbers, allow_nan=False)}
    writers = {folder / name: partial(_write, content + "\n") for name, content in texts.items()}
    drawn = {
        folder / f"{name}.{kind}": partial(_draw, figure, kind)
        for name, figure in figures.items()
        for kind in ("png", "svg")
    }
    make_folder(folder)
    try:
        write_files({**writers, **drawn})
    except OSError as error:
        raise _not_written(folder, error) from None
    return [*writers, *drawn]


def make_folder(folder: Path) -> None:
    """Make the folder. Raise HpxferError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from None


def _not_written(folder: Path, error: OSError) -> HpxferError:
    return HpxferError(f"{folder}: the limit cannot be written: {error.strerror}; choose another folder with --output")


def _write(text: str, file: IO[bytes]) -> None:
    file.write(text.encode())


def _draw(figure: Figure, kind: str, file: IO[bytes]) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "hpxfer"}):
        figure.savefig(file, format=kind, dpi=PNG_DPI, metadata={"Date": None} if kind == "svg" else {})
