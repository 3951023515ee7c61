"""`hpxfer bench`: how fast this machine is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from hpxfer.cli.options import AsJson, Texts
from hpxfer.cli.output import answer


def bench(
    rows: Annotated[Texts, Option("--row", metavar="NAME", help="Measure this row only; may be repeated.")] = None,
    output: Annotated[Path, Option(help="Append the rows to speeds.jsonl in this folder.")] = Path("results/bench"),
    device: Annotated[str, Option(help="auto, cpu or cuda.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the speeds of this machine that `hpxfer plan` reads: of stacks on a CPU core, or on a GPU.

    It takes about a minute on a CPU, and five on a GPU. `hpxfer plan` then counts with these speeds on such a machine.

    \b
    Examples:
      hpxfer bench
      hpxfer bench --row width-32 --device cpu
    """
    from hpxfer.bench.command import run_bench, table_text
    from hpxfer.plan import SPEEDS, file_of

    found = run_bench(device, output, rows or ())
    answer(found.to_dict, lambda: table_text(found), as_json=as_json, files=[file_of(SPEEDS, output)])
