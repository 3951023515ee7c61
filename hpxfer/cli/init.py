"""`hpxfer init`: write a commented sweep file to start from. The examples travel in the package."""

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
_FOLDERS = tuple(_EXAMPLES / name for name in ("", "search", "chain", "mlp", "full"))


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it; default: here.")] = Path(),
    example: Annotated[
        str,
        typer.Option("--example", help="Which one; --list names them.", autocompletion=lambda: [*examples()]),
    ] = "quickstart",
    list_all: Annotated[bool, typer.Option("--list", help="List the examples, and write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented sweep file to start from.

    \b
    Examples:
      hpxfer init
      hpxfer init --list
      hpxfer init --example transfer sweeps
    """
    found = examples()
    if list_all:
        say(json.dumps({name: _question(path) for name, path in found.items()}) if as_json else _table(found))
        return
    if example not in found:
        fix = nearest(example, found)
        near = f"{fix}; " if fix.startswith("did") else ""  # the table names all of them
        raise HpxferError(f"--example: unknown example {shown(example)}; {near}there are:\n{_table(found)}")
    path = folder / f"{example}.yaml"
    if path.exists():
        raise HpxferError(f"{path}: must not exist yet, as it would be overwritten; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(found[example].read_bytes())
    except OSError as error:
        raise HpxferError(f"{path}: cannot be written: {error.strerror}; name another folder") from None
    if as_json:
        say(json.dumps({"sweep": str(path)}))
    else:
        say(f"written:\n  {path}")
        say(f"next: edit it, then see what it costs: hpxfer plan {path}", err=True)


def examples() -> dict[str, Path]:
    """Return the example sweeps by name."""
    return {path.stem: path for folder in _FOLDERS for path in sorted(folder.glob("*.yaml"))}


def _table(found: dict[str, Path]) -> str:
    width = max(map(len, found))
    return "\n".join(f"  {name:{width}}  {_question(path)}" for name, path in found.items())


def _question(path: Path) -> str:
    """Return the first line of an example: what the sweep asks."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


INIT = Command(name="init", run=init)
