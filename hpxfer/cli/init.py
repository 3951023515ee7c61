"""`hpxfer init`: write a commented sweep file to start from, and its trainer. The examples travel in the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import hpxfer
from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson
from hpxfer.cli.output import say
from hpxfer.errors import HpxferError, nearest, shown

_EXAMPLES = Path(hpxfer.__file__).parent / "examples"
# Folders of examples. What else stands beside them is for clusters, and no sweep.
_OWN = tuple(f"any_trainer/{name}" for name in ("numpy", "nanogpt", "mixtral"))
_FOLDERS = tuple(_EXAMPLES / name for name in ("", "search", "chain", "mlp", "limit", "full", *_OWN))


def init(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Which example; --list names them.", autocompletion=lambda: [*examples()]),
    ] = "quickstart",
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it; default: here.")] = Path(),
    list_all: Annotated[bool, typer.Option("--list", help="List the examples, and write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented sweep file to start from. That of a trainer of one's own comes with its train.py.

    \b
    Examples:
      hpxfer init
      hpxfer init --list
      hpxfer init transfer
      hpxfer init own_numpy first
    """
    found = examples()
    if list_all:
        say(json.dumps({name: _question(path) for name, path in found.items()}) if as_json else _table(found))
        return
    if name not in found:
        fix = nearest(name, found)
        near = f"{fix}; " if fix.startswith("did") else ""  # the list names all of them
        raise HpxferError(
            f"NAME: unknown example {shown(name)}; {near}--list names all {len(found)}, "
            "and a folder comes after the name"
        )
    files = {folder / each.name: each for each in _files(found[name])}
    for path in files:
        if path.exists():
            raise HpxferError(f"{path}: must not exist yet, as it would be overwritten; name another folder")
    for path, source in files.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(source.read_bytes())
        except OSError as error:
            raise HpxferError(f"{path}: cannot be written: {error.strerror}; name another folder") from None
    sweep, *beside = map(str, files)
    if as_json:
        say(json.dumps({"sweep": sweep, **({"files": beside} if beside else {})}))
    else:
        say("\n".join(["written:", *(f"  {path}" for path in files)]))
        say(f"next: edit it, then see what it costs: hpxfer plan {sweep}", err=True)


def examples() -> dict[str, Path]:
    """Return the example sweeps by name."""
    return {path.stem: path for folder in _FOLDERS for path in sorted(folder.glob("*.yaml"))}


def _files(sweep: Path) -> list[Path]:
    """Return what an example is written as: its sweep file, and the code of its own trainer."""
    return [sweep, *sorted(sweep.parent.glob("*.py"))]


def _table(found: dict[str, Path]) -> str:
    width = max(map(len, found))
    return "\n".join(f"  {name:{width}}  {_question(path)}" for name, path in found.items())


def _question(path: Path) -> str:
    """Return the first line of an example: what the sweep asks."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


INIT = Command(name="init", run=init)
