"""`hpxfer bench`: how fast this machine is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson
from hpxfer.cli.output import say, written
from hpxfer.errors import HpxferError

BENCH_FOLDER = Path("results/bench")

bench_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

BenchOutput = Annotated[Path, typer.Option("--output", help="Append the numbers to NAME.jsonl in this folder.")]
BenchDevice = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Rows = Annotated[
    list[str] | None,
    typer.Option("--row", metavar="NAME", help="Measure this row only, e.g. experts-32; may be repeated."),
]


@bench_app.callback()
def bench(
    context: typer.Context,
    output: BenchOutput = BENCH_FOLDER,
    device: BenchDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how fast this machine is, each speed beside its yardstick. Without a name, every benchmark runs.

    \b
    Examples:
      hpxfer bench
      hpxfer bench trainer --device cpu
    """
    if context.invoked_subcommand is None:
        _bench(("trainer", "kernels", "sweep"), output, device, as_json)
    elif (output, device, as_json) != (BENCH_FOLDER, "auto", False):
        raise HpxferError(
            f"options stand after the benchmark's name: hpxfer bench {context.invoked_subcommand} [OPTIONS]"
        )


@bench_app.command()
def trainer(
    rows: Rows = None, output: BenchOutput = BENCH_FOLDER, device: BenchDevice = "auto", as_json: AsJson = False
) -> None:
    """Measure training steps: stacked trials, single trials, and the peak of the machine.

    Example: hpxfer bench trainer
    """
    _bench(("trainer",), output, device, as_json, rows)


@bench_app.command()
def kernels(
    rows: Rows = None, output: BenchOutput = BENCH_FOLDER, device: BenchDevice = "auto", as_json: AsJson = False
) -> None:
    """Measure single operators: experts, cross entropy, optimizer and routing.

    \b
    Examples:
      hpxfer bench kernels
      hpxfer bench kernels --row experts-32 --device cpu
    """
    _bench(("kernels",), output, device, as_json, rows)


@bench_app.command(name="sweep")
def bench_sweep(
    rows: Rows = None, output: BenchOutput = BENCH_FOLDER, device: BenchDevice = "auto", as_json: AsJson = False
) -> None:
    """Measure whole sweeps: a worker that stays and stacks trials, against a new process per trial.

    Example: hpxfer bench sweep
    """
    _bench(("sweep",), output, device, as_json, rows)


def _bench(names: tuple[str, ...], output: Path, device: str, as_json: bool, rows: list[str] | None = None) -> None:
    from hpxfer.bench.command import run_benches

    ran = run_benches(names, device, output, rows or ())
    if as_json:
        say(json.dumps([record.to_dict() for record in ran.records]))
    else:
        say(f"{ran.text}\n\n{written(list(ran.files))}")


BENCH = Command(name="bench", run=bench_app)
