"""The generated part of the README: `python -m hpxfer.docs README.md` writes its rule tables from those in code."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.explain import FIELDS
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.table import Row

BEGIN = "<!-- rules:begin -->"
END = "<!-- rules:end -->"
SHOWN = ("completep-moe", "sp")
HEADINGS = ("role", "init std", "LR", "eps", "weight decay", "forward", "source")


def rules_markdown() -> str:
    """Return one Markdown table for each parameterization shown: what every role's base values are multiplied by."""
    return "\n\n".join(_table(parameterization(name)) for name in SHOWN)


def with_rules(readme: str) -> str:
    """Return `readme` with the rule tables between its markers; raise HpxferError unless it has them once, in order."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise HpxferError(f"must hold the line {BEGIN} and, below it, the line {END}, each once; add them")
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{rules_markdown()}\n\n{END}{after}"


def main(args: Sequence[str]) -> int:
    """Rewrite the file named by the one argument; return the exit code, 2 where the input is at fault."""
    try:
        if len(args) != 1:
            raise HpxferError("usage: python -m hpxfer.docs README.md")
        _rewrite(Path(args[0]))
    except HpxferError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _rewrite(path: Path) -> None:
    try:
        text = path.read_bytes().decode("utf-8")  # not read_text: it would rewrite the line ends
    except (OSError, UnicodeDecodeError) as error:
        raise HpxferError(f"{path}: cannot be read: {error}") from None
    try:
        new = with_rules(text)
    except HpxferError as error:
        raise HpxferError(f"{path}: {error}") from None
    # Beside the file, so that the replacement is one rename and no reader sees half a README.
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(new.encode("utf-8"))
    shutil.copymode(path, partial)
    os.replace(partial, path)


def _table(choice: Parameterization) -> str:
    lines = [_line(HEADINGS), _line(["---"] * len(HEADINGS))]
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in choice.rows("adam"):
        groups.setdefault(_cells(row), []).append(f"`{row.role}`")
    lines += [_line((", ".join(roles), *cells)) for cells, roles in groups.items()]
    return "\n".join([f"`{choice.name}` ({choice.table.source}), Adam:", "", *lines])


def _cells(row: Row) -> tuple[str, ...]:
    return (*(f"`{getattr(row, name)}`" for name in FIELDS), row.source)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
