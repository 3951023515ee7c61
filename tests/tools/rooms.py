"""The rooms of the package and what each imports, read from the source: `python tests/tools/rooms.py`.

A room is a folder or a module directly below hpxfer/. Every import counts: at the top of a file, inside a function, and
for types only. A registry that names the module of a row as text is no import.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "hpxfer"
Graph = Mapping[str, set[str]]


def modules(root: Path, package: str = PACKAGE) -> Iterator[tuple[str, Path]]:
    """Yield (dotted name, file) of every module below `root / package`, through the link hpxfer/kernels too.

    The scripts of examples are no modules: a user copies them.
    """
    for folder, _, files in sorted(os.walk(root / package, followlinks=True)):
        if (root / package / "examples") in (Path(folder), *Path(folder).parents):
            continue
        for file in sorted(files):
            if file.endswith(".py"):
                path = Path(folder, file)
                parts = path.relative_to(root).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(module: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of everything that a file imports; `from a import b` gives a and a.b."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            yield node.lineno, source
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def room_of(module: str) -> str:
    """Return the room of a module, e.g. `analysis` of hpxfer.verdict.drift; the public face is `hpxfer` itself.

    `python -m hpxfer` runs the command line, so hpxfer.__main__ counts as a part of `cli`.
    """
    parts = ["hpxfer", "cli"] if module == f"{PACKAGE}.__main__" else module.split(".")
    return parts[1] if len(parts) > 1 else PACKAGE


def room_graph(root: Path = ROOT) -> dict[str, set[str]]:
    """Return room -> the rooms that it imports. The public face, which imports every room by name, is left out."""
    found = dict(modules(root))
    graph: dict[str, set[str]] = {room_of(module): set() for module in found if module != PACKAGE}
    for module, path in found.items():
        if module == PACKAGE:
            continue
        for _, name in imports(module, path):
            known = [name[:end] for end in range(len(name), 0, -1) if name[:end] in found]
            if known and known[0] != PACKAGE and room_of(known[0]) != room_of(module):
                graph[room_of(module)].add(room_of(known[0]))
    return graph


def circle(graph: Graph) -> list[str]:
    """Return the rooms of one circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return sorted(error.args[1][1:])
    return []


def levels(graph: Graph) -> list[list[str]]:
    """Return the rooms from the lowest level up. Each room stands one level above the highest room that it imports."""
    sorter, found = TopologicalSorter(graph), list[list[str]]()
    sorter.prepare()
    while sorter.is_active():
        found.append(sorted(sorter.get_ready()))
        sorter.done(*found[-1])
    return found


def drawing(graph: Graph) -> str:
    """Return the rooms as text, the highest first, each with the rooms that it imports."""
    width = max(map(len, graph))
    rows = [room for level in reversed(levels(graph)) for room in level]
    return "\n".join(f"{room:<{width}}  {' '.join(sorted(graph[room]))}".rstrip() for room in rows)


if __name__ == "__main__":
    print(drawing(room_graph()))  # noqa: T201
