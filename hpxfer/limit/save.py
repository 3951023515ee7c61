"""Write a limit to files: the text, its numbers as JSON, and its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hpxfer.host.output_folder import text_writer, write_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHAT = "limit"


def save(folder: Path, text: str, numbers: Mapping[str, Any], figures: Mapping[str, Figure]) -> list[Path]:
    """Write limit.txt, limit.json and every figure (PNG, SVG), and return the paths. Equal limits give equal bytes."""
    from hpxfer.figures.style import write_png, write_svg

    writers: dict[Path, Callable[[IO[bytes]], object]] = {
        folder / "limit.txt": text_writer(text),
        folder / "limit.json": text_writer(json.dumps(numbers, allow_nan=False)),
    }
    for name, figure in figures.items():
        writers[folder / f"{name}.png"] = partial(write_png, figure)
        writers[folder / f"{name}.svg"] = partial(write_svg, figure, name)
    return write_folder(writers, folder, WHAT)
