"""`hpxfer bench`: how fast this machine is."""

from __future__ import annotations

import json
from dataclasses import asdict
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
        _bench(("trainer", "kernels", "moe", "sweep"), output, device, as_json)
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


@bench_app.command()
def moe(
    axis: Annotated[
        str | None, typer.Option("--axis", help="capacity: more experts; granularity: more and smaller ones.")
    ] = None,
    rows: Rows = None,
    output: BenchOutput = BENCH_FOLDER,
    device: BenchDevice = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the latency of a MoE layer beside a dense FFN of equal active width, as its experts become more.

    \b
    Examples:
      hpxfer bench moe
      hpxfer bench moe --axis granularity --device cpu
    """
    if axis is not None and rows:
        raise HpxferError("--axis, --row: must be one of them, got both; leave one out")
    if axis is not None:
        from hpxfer.bench.machine import bench_device
        from hpxfer.bench.moe_sizes import keys_along

        rows = list(keys_along(axis, "cuda" if bench_device(device).type == "cuda" else "cpu"))
    _bench(("moe",), output, device, as_json, rows)


@bench_app.command(name="sweep")
def bench_sweep(
    rows: Rows = None, output: BenchOutput = BENCH_FOLDER, device: BenchDevice = "auto", as_json: AsJson = False
) -> None:
    """Measure whole sweeps: a worker that stays and stacks trials, against a new process per trial.

    Example: hpxfer bench sweep
    """
    _bench(("sweep",), output, device, as_json, rows)


@bench_app.command(name="accept")
def bench_accept(
    plan: Annotated[
        str | None, typer.Option("--plan", help="Some of correct,kernels,profile,trainer,tune,late; default: all.")
    ] = None,
    budget: Annotated[float, typer.Option("--budget", help="The seconds that this run may take.")] = 560,
    done: Annotated[
        list[Path] | None,
        typer.Option("--done", help="Do not repeat what passed in this earlier output; may be repeated."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output", help="Append each number to this .jsonl file, or to accept.jsonl in this folder."),
    ] = BENCH_FOLDER,
    item: Annotated[
        list[str] | None, typer.Option("--item", metavar="NAME", help="Run this item only; may be repeated.")
    ] = None,
    untested: Annotated[
        bool, typer.Option("--untested", help="Measure also what depends on tests that have not run.")
    ] = False,
    dry: Annotated[bool, typer.Option("--dry", help="List the items and what each needs, and run none.")] = False,
    as_json: AsJson = False,
) -> None:
    """Prove the kernels on a new GPU and measure it, within a time budget.

    Each item runs in a process of its own, and each number is a JSON line on the disk before the next item begins. A
    second run goes on where the first one ended. Exit code 0: all items have passed. 1: one failed. 2: bad input. 3:
    none failed, but some were skipped, or there is no GPU.

    \b
    Examples:
      hpxfer bench accept --plan correct,kernels --budget 560
      hpxfer bench accept --dry
    """
    import torch

    from hpxfer.bench import accept as acceptance
    from hpxfer.bench.accept_items import chosen

    items = chosen(plan, item or ())
    seconds, file = acceptance.require_budget(budget), acceptance.output_file(output)
    acceptance.require_place(file)
    has_gpu = torch.cuda.is_available()
    if dry or not has_gpu:
        acceptance.earlier(done or (), file, {})
        say(json.dumps(acceptance.dry_rows(items)) if as_json else acceptance.dry_text(items))
        if not has_gpu:
            say("no GPU is here that torch sees: nothing was run", err=True)
        if not dry:
            raise typer.Exit(acceptance.UNFINISHED)
        return
    found = acceptance.accept(
        items, budget_s=seconds, done=done or (), output=file, untested=untested, tell=lambda line: say(line, err=True)
    )
    if as_json:
        ended = [asdict(one) for one in found.ended]
        say(json.dumps({"code": found.code, "items": ended, "numbers": found.numbers}))
    else:
        say(f"{acceptance.summary(found)}\n\n{written([file])}")
    raise typer.Exit(found.code)


@bench_app.command(name="tune")
def bench_tune(
    entry: Annotated[
        list[str] | None, typer.Option("--entry", metavar="NAME", help="Search this entry only, e.g. bf16-512.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="The table that is written; kernels/configs.json in a clone is the package's.")
    ] = BENCH_FOLDER / "configs.json",
) -> None:
    """Search the block sizes of the kernels on this GPU. It takes about three minutes per entry.

    Each entry is in the table as soon as it is found. A second run times nothing again.

    \b
    Examples:
      hpxfer bench tune
      hpxfer bench tune --entry bf16-512 --out kernels/configs.json
    """
    from hpxfer.bench.tune import tune

    files = tune(entry or (), out, lambda line: say(line, err=True))
    say(written(list(files)))


@bench_app.command(name="roofline")
def bench_roofline(
    case: Annotated[
        str, typer.Option("--case", help="base-32k, twin-32k (its dense twin), base-64k, large or large-twin.")
    ] = "base-32k",
    tflops: Annotated[float, typer.Option("--tflops", help="The GPU's bfloat16 peak in TFLOP/s.")] = 790,
    tb_s: Annotated[float, typer.Option("--tb-s", help="The GPU's copy bandwidth in TB/s.")] = 4.3,
    output: Annotated[Path, typer.Option("--output", help="The folder with the profile of an acceptance.")] = (
        BENCH_FOLDER
    ),
    as_json: AsJson = False,
) -> None:
    """Predict the time of each part of a GPU step from its bytes and FLOPs, beside a measured profile if there is one.

    It needs no GPU.

    \b
    Examples:
      hpxfer bench roofline
      hpxfer bench roofline --case large --tflops 700 --tb-s 3
    """
    from hpxfer.bench import roofline_table as roofline

    machine = roofline.machine_of(tflops, tb_s)
    say(
        json.dumps(roofline.roofline_json(case, machine, output))
        if as_json
        else roofline.roofline_text(case, machine, output)
    )


def _bench(names: tuple[str, ...], output: Path, device: str, as_json: bool, rows: list[str] | None = None) -> None:
    from hpxfer.bench.command import run_benches

    ran = run_benches(names, device, output, rows or ())
    if as_json:
        say(json.dumps([record.to_dict() for record in ran.records]))
    else:
        say(f"{ran.text}\n\n{written(list(ran.files))}")


BENCH = Command(name="bench", run=bench_app)
