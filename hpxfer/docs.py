"""The generated parts of the README: `python -m hpxfer.docs README.md` writes them from code and committed results.

A part stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.explain import FIELDS
from hpxfer.scaling.table import Row
from hpxfer.scaling.tables import PARAMETERIZATIONS

SHOWN = ("completep-moe", "sp")
HEADINGS = ("role", "init std", "LR", "eps", "weight decay", "forward", "source")


def rules_markdown() -> str:
    """Return one Markdown table for each parameterization shown: what every role's base values are multiplied by."""
    return "\n\n".join(_table(parameterization(name)) for name in SHOWN)


def tables_markdown() -> str:
    """Return one Markdown table of all parameterizations: name, source, axes, optimizers, conventions."""
    lines = [_line(("name", "source", "axes", "optimizers", "conventions")), _line(["---"] * 5)]
    for table in PARAMETERIZATIONS.rows():
        axes = ", ".join(table.axes) + (f" ({', '.join(table.adam_axes)}: adam)" if table.adam_axes else "")
        conventions = ", ".join(f"`{key}`" for key in table.conventions) or "none"
        lines.append(_line((f"`{table.name}`", table.source, axes, ", ".join(table.rows), conventions)))
    return "\n".join(lines)


def quickstart_text(root: Path) -> str:
    """Return the report on the published quickstart, as a code block."""
    from hpxfer.analysis import transfer_report
    from hpxfer.results import load_results

    summary = transfer_report(load_results(root / "results" / "published" / "quickstart")).summary()
    return f"```text\n{summary.strip()}\n```"


def bench_markdown(root: Path) -> str:
    """Return the latest committed run of every benchmark as Markdown tables; what was never run says so."""
    from hpxfer.bench.table import bench_markdown as tables

    return tables(root / "results" / "bench")


def error_rates_markdown(root: Path) -> str:
    """Return the latest committed run of `python -m hpxfer.testing.error_rates` as Markdown tables."""
    from hpxfer.testing.error_rates import markdown

    path = root / "results" / "bench" / "error_rates.jsonl"
    return markdown(json.loads(path.read_text(encoding="utf-8").splitlines()[-1]))


PARTS: dict[str, Callable[[Path], str]] = {
    "tables": lambda root: tables_markdown(),
    "rules": lambda root: rules_markdown(),
    "quickstart": quickstart_text,
    "bench": bench_markdown,
    "error_rates": error_rates_markdown,
}


def with_part(readme: str, name: str, text: str) -> str:
    """Return `readme` with `text` between the markers of a part; raise HpxferError unless they stand once, in order."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if readme.count(begin) != 1 or readme.count(end) != 1 or readme.index(begin) > readme.index(end):
        raise HpxferError(f"must hold the line {begin} and, below it, the line {end}, each once; add them")
    before, _, rest = readme.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def generated(readme: str, root: Path) -> str:
    """Return `readme` with every part written anew; `root` is the folder that holds results/."""
    for name, make in PARTS.items():
        readme = with_part(readme, name, make(root))
    return readme


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
        new = generated(text, path.resolve().parent)
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
