"""`hpxfer judge`: do HPs transfer in runs that were trained elsewhere? The verdict on a table or a tracker's runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson
from hpxfer.cli.output import say, written
from hpxfer.errors import HpxferError, shown

Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="COLUMN=NAME",
        help="The table's own name of a column, e.g. value=lr or scale=width; may be repeated.",
    ),
]
RegretLimit = Annotated[
    str | None,
    typer.Option(metavar="loss=SHARE|octaves=N", help="The largest loss given up that counts as none."),
]


def judge(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="A CSV or Parquet file with one row per run, or wandb:ENTITY/PROJECT, mlflow:URI#EXPERIMENT, "
            "tensorboard:LOGDIR.",
        ),
    ],
    mapped: Map = None,
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="NAME", help="A column with a dimension of the shape; may be repeated."),
    ] = None,
    control: Annotated[
        str | None, typer.Option(metavar="ARM", help="The arm that the others are compared with.")
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZE", help="The base, e.g. scale=64; default: the marked one, else the smallest."),
    ] = None,
    duplicates: Annotated[
        str, typer.Option(metavar="refuse|last", help="What to do with two results of one cell and seed.")
    ] = "refuse",
    empty: Annotated[
        str, typer.Option(metavar="refuse|diverged|missing", help="What an empty loss is where no status says it.")
    ] = "refuse",
    hp: Annotated[str | None, typer.Option("--hp", help="The HP to judge; default: lr, else the first.")] = None,
    regret_limit: RegretLimit = None,
    error: Annotated[float, typer.Option(help="The largest chance of a wrong verdict.")] = 0.02,
    tolerance: Annotated[float, typer.Option(help="HP values within so many octaves are one.")] = 0.02,
    unit: Annotated[str | None, typer.Option(help="The unit of the loss; default: nats.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Of a tracker: the metric that is the loss; default: its only held-out loss, else of training."
        ),
    ] = None,
    reduce: Annotated[
        str | None,
        typer.Option(
            metavar="last|tail",
            help="Of a tracker: the loss is the last point, or the mean of the last 5% of points; default: last of a "
            "held-out loss.",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Of a tracker: named groups are columns, read from a run's name, e.g. 'lr(?P<lr>[^_]+)'.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Of a tracker: where a run has finished; default: the last step of its shape."),
    ] = None,
    save_table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table that is judged, as .csv or .parquet.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write report.html and its figures into this folder.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Print all that was found: reasons and every shape.")] = False,
    as_json: AsJson = False,
) -> None:
    """Judge whether an HP transfers in runs that hpxfer did not train.

    The columns are arm, axis, scale, is_base, hp, value, seed, loss, status, run_id, steps, loss_name and unit; scale,
    value and loss are needed. Well-known names such as learning_rate need no --map. Without a control or a named base
    no HP is said to transfer: the verdict then is that the optimum did not move.

    \b
    Examples:
      hpxfer judge runs.csv --map value=lr --map scale=width --map arm=parameterization --control sp --base scale=256
      hpxfer judge runs.parquet --map value=lr --shape hidden --shape tokens --base tokens=2e9 --report report
      hpxfer judge runs.csv --duplicates last --json
      hpxfer judge wandb:me/moe --map value=lr --map scale=width --control sp --save-table runs.parquet
      hpxfer judge mlflow:sqlite:///mlflow.db#moe --map scale=width --metric val_loss
      hpxfer judge tensorboard:logs --pattern 'w(?P<width>[0-9]+)_lr(?P<lr>[^_]+)_s(?P<seed>[0-9]+)'
    """
    from hpxfer.outside.imports.tabulate import Choices
    from hpxfer.outside.judging import judge as judge_table

    found = judge_table(
        table,
        columns=pairs(mapped or (), "--map"),
        shape=shape or (),
        control=control,
        base=base or (),
        duplicates=duplicates,
        empty=empty,
        hp=hp,
        regret_limit=None if regret_limit is None else _limit(regret_limit),
        error=error,
        tolerance=tolerance,
        unit=unit,
        tracker=Choices(metric=metric, reduce=reduce, pattern=pattern, steps=steps),
        save=save_table,
    )
    files = (*(() if save_table is None else (save_table,)), *(() if report is None else found.write(report)))
    if as_json:
        say(json.dumps({**found.to_dict(), "files": [str(file) for file in files]}))
        return
    lines = [(found.to_text() if full else found.summary()).rstrip("\n")]
    lines += [] if full else ["Reasons and tables: --full prints them."]
    say("\n".join([*lines, *([written(files)] if files else []), found.next_step()]))


def pairs(given: Sequence[str], option: str, example: str = "value=lr") -> dict[str, str]:
    """Return name -> value of options NAME=VALUE. Raise HpxferError for one that is none, or given twice."""
    out: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (equals and name.strip() and value.strip()):
            raise HpxferError(f"{option}: must be NAME=VALUE, got {shown(one)}; e.g. {option} {example}")
        if name.strip() in out:
            raise HpxferError(f"{option}: must name {name.strip()} once, got it twice; leave one of them out")
        out[name.strip()] = value.strip()
    return out


def _limit(given: str) -> dict[str, float]:
    """Return a regret limit as `hpxfer.judge` takes it."""
    (kind, size), *_ = pairs([given], "--regret-limit", "loss=0.01").items()
    try:
        return {kind: float(size)}
    except ValueError:
        raise HpxferError(f"--regret-limit: must be loss=SHARE or octaves=NUMBER, got {shown(given)}") from None


JUDGE = Command(name="judge", run=judge)
