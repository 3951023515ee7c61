"""Write a limit to files: the text, its numbers as JSON, and its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import reason, write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(folder: Path, text: str, numbers: Mapping[str, Any], figures: Mapping[str, Figure]) -> list[Path]:
    """Write limit.txt, limit.json and every figure (PNG, SVG), and return the paths. Equal limits give equal bytes."""
    from hpxfer.figures.style import to_png, write_svg

    texts = {"limit.txt": text, "limit.json": json.dumps(numbers, allow_nan=False)}
    writers: dict[Path, Callable[[IO[bytes]], object]] = {
        folder / name: partial(_write, (content + "\n").encode()) for name, content in texts.items()
    }
    for name, figure in figures.items():
        writers[folder / f"{name}.png"] = partial(_write, to_png(figure))
        writers[folder / f"{name}.svg"] = partial(write_svg, figure, name)
    make_folder(folder)
    try:
        write_files(writers)
    except OSError as error:
        raise _not_written(folder, error) from None
    return list(writers)


def make_folder(folder: Path) -> None:
    """Make the folder. Raise HpxferError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from None


def _not_written(folder: Path, error: OSError) -> HpxferError:
    return HpxferError(f"{folder}: the limit cannot be written: {reason(error)}; choose another folder with --output")


def _write(content: bytes, file: IO[bytes]) -> None:
    file.write(content)
