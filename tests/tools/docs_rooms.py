"""The rooms of the package and their graph, read from the imports of every file, lazy and type-only ones included."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from docs_markdown import table

from hpxfer.errors import HpxferError

# The public face re-exports from every room.
FACE = "hpxfer"


def graph(package: Path) -> dict[str, set[str]]:
    """Return room -> the rooms that it imports. A room is a folder of the package, or a file beside the folders."""
    found: dict[str, set[str]] = {}
    for path in _files(package):
        room = path.relative_to(package).with_suffix("").parts[0]
        if room != "__init__":
            found.setdefault(room, set()).update(_rooms(path, package))
    return {room: imported & found.keys() - {room} for room, imported in found.items()}


def rooms_markdown(root: Path) -> str:
    """Return one row per room: what it is, and which rooms it imports. A room only imports rooms of earlier rows."""
    package = root / "hpxfer"
    rows = [
        (f"`{room}`", describe(package, room), ", ".join(f"`{name}`" for name in sorted(imported)) or "none")
        for room, imported in in_order(graph(package))
    ]
    return table(("room", "what it is", "imports"), rows)


def in_order(rooms: Mapping[str, set[str]]) -> list[tuple[str, set[str]]]:
    """Return the rooms from the lowest to the highest, by name within a level. Raise HpxferError on a circle."""
    sorter = TopologicalSorter(rooms)
    try:
        sorter.prepare()
    except CycleError as error:
        raise HpxferError(f"rooms import one another in a circle: {' <- '.join(error.args[1])}") from None
    out: list[tuple[str, set[str]]] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        out += [(room, rooms[room]) for room in ready]
        sorter.done(*ready)
    return out


def describe(package: Path, room: str) -> str:
    """Return the first sentence of a room's docstring."""
    path = package / room / "__init__.py" if (package / room).is_dir() else package / f"{room}.py"
    text = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.exists() else None) or ""
    first = " ".join(text.partition("\n\n")[0].split())
    return first.partition(". ")[0].rstrip(".")


def _files(package: Path) -> Iterator[Path]:
    for folder, _, files in os.walk(package, followlinks=True):
        yield from (Path(folder, file) for file in sorted(files) if file.endswith(".py"))


def _rooms(path: Path, package: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == FACE:
            names = [f"{FACE}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        yield from (name.split(".")[1] for name in names if name.startswith(f"{FACE}."))
