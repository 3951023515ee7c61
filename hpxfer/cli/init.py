"""`hpxfer init`: write a commented sweep file to start from, and its trainer. The examples travel in the package."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import hpxfer
from hpxfer.cli.options import AsJson
from hpxfer.cli.output import answer, say, written
from hpxfer.errors import HpxferError, nearest, shown

_EXAMPLES = Path(hpxfer.__file__).parent / "examples"
# The examples to start from, in the order of the list. All others are studies, which the list only names.
STARTS = (
    *("quickstart", "transfer", "mixtral", "dense_to_moe", "diffusion", "first", "verdict"),
    *("own_numpy", "own_nanogpt", "own_mixtral"),
)
NO_SWEEPS = ("rayjob.yaml", "figures.yaml")
_SENTENCE = re.compile(r"# (.*?)(?:(?<=\?)(?= \w)|(?<=\.)(?= [A-Z])|$)", re.MULTILINE)  # the first one of a file
_CHECK = re.compile(r"^# +hpxfer check --sweep \S+(.*)", re.MULTILINE)  # of a file that is for no run


def examples() -> dict[str, Path]:
    """Return the example sweeps by name: those to start from, studies, and figures of papers, such as `mssp/q08`."""
    files = [path for path in _EXAMPLES.rglob("*.yaml") if path.name not in NO_SWEEPS]
    found = {path.stem: path for path in files if path.parent.parent.name != "papers"}
    figures = {f"{path.parent.name}/{path.stem}": path for path in files if path.parent.parent.name == "papers"}
    return {
        **{name: found[name] for name in (*STARTS, *sorted(found.keys() - set(STARTS)))},
        **{name: figures[name] for name in sorted(figures)},
    }


def init(
    name: Annotated[
        str, Argument(metavar="NAME", help="Which example; --list names them.", autocompletion=lambda: [*examples()])
    ] = "quickstart",
    folder: Annotated[Path, Argument(metavar="DIR", help="Where to write it; default: here.")] = Path(),
    list_all: Annotated[bool, Option("--list", help="List the examples, and write nothing.")] = False,
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
    if list_all:  # the first sentence of an example is what the sweep asks
        texts = {key: path.read_text(encoding="utf-8") for key, path in found.items()}
        asked = {key: match[1] for key, text in texts.items() if (match := _SENTENCE.match(text))}
        answer(lambda: asked, lambda: _listing(asked), as_json=as_json)
        return
    if name not in found:
        near = f"{fix}; " if (fix := nearest(name, found)).startswith("did") else ""
        raise HpxferError(
            f"NAME: unknown example {shown(name)}; {near}--list names all {len(found)}, and a folder comes after the "
            "name"
        )
    sources = [found[name], *sorted(found[name].parent.glob("*.py"))]
    files = {folder / each.name: each for each in sources}
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
    data = {"sweep": sweep, **({"files": beside} if beside else {})}
    answer(lambda: data, lambda: written(files), as_json=as_json)
    if not as_json:
        check = _CHECK.search(found[name].read_text(encoding="utf-8"))
        quoted = shlex.quote(sweep)
        then = (
            f"check it: hpxfer check --sweep {quoted}{check[1]}"
            if check
            else f"see what it costs: hpxfer plan {quoted}"
        )
        say(f"next: edit it, then {then}", err=True)


def _listing(asked: dict[str, str]) -> str:
    studies = {name: sentence for name, sentence in asked.items() if "/" not in name}
    width = max(map(len, studies))
    lines = [f"  {name:{width}}  {sentence}" for name, sentence in studies.items()]
    figures = f"and {len(asked) - len(studies)} of figures of papers, such as {[*asked][-1]}: docs/papers.md"
    return "\n".join([*lines[: len(STARTS)], "", "sweeps of studies:", *lines[len(STARTS) :], "", figures])
