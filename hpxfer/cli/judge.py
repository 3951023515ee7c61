"""`hpxfer judge`: do HPs transfer in runs that were trained elsewhere? The verdict on a table or a tracker's runs."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from hpxfer.cli.options import AsJson, File, Text, Texts, Whole, pairs
from hpxfer.cli.output import answer, written


def judge(
    table: Annotated[
        str,
        Argument(
            metavar="TABLE",
            help="A CSV, TSV, Parquet or JSON lines file with one row per run, or wandb:ENTITY/PROJECT, "
            "mlflow:URI#EXPERIMENT, tensorboard:LOGDIR.",
        ),
    ],
    mapped: Annotated[
        Texts, Option("--map", metavar="COLUMN=NAME", help="A column by its own name; repeatable.")
    ] = None,
    shape: Annotated[Texts, Option(metavar="NAME", help="A dimension of the shape; may be repeated.")] = None,
    control: Annotated[Text, Option(metavar="ARM", help="The arm that the others are compared with.")] = None,
    base: Annotated[Texts, Option(metavar="NAME=SIZE", help="The base; default: the marked, or smallest.")] = None,
    duplicates: Annotated[str, Option(metavar="refuse|last", help="If a cell and seed has two results.")] = "refuse",
    empty: Annotated[
        str, Option(metavar="refuse|diverged|missing", help="An empty loss that no status explains.")
    ] = "refuse",
    hp: Annotated[Text, Option(help="The HP to judge; default: lr, else the first.")] = None,
    regret_limit: Annotated[
        Text, Option(metavar="loss=SHARE|octaves=N", help="The regret that counts as none.")
    ] = None,
    error: Annotated[float, Option(help="The largest chance of a wrong verdict.")] = 0.02,
    tolerance: Annotated[float, Option(help="HP values within so many octaves are one.")] = 0.02,
    unit: Annotated[Text, Option(help="The unit of the loss; default: nats.")] = None,
    metric: Annotated[
        Text, Option(help="Of a tracker: the loss; default: its only held-out one, else of training.")
    ] = None,
    reduce: Annotated[
        Text,
        Option(
            metavar="last|tail",
            help="Of a tracker: the loss is the last point, or the mean of the last 5% of points; default: last "
            "of a held-out loss.",
        ),
    ] = None,
    pattern: Annotated[
        Text,
        Option(
            metavar="REGEX",
            help="Of a tracker: named groups are columns, read from a run's name, e.g. 'lr(?P<lr>[^_]+)'.",
        ),
    ] = None,
    steps: Annotated[Whole, Option(min=1, help="Of a tracker: where a run is finished; default: the last.")] = None,
    save_table: Annotated[File, Option(metavar="FILE", help="Write the judged table, as .csv or .parquet.")] = None,
    report: Annotated[File, Option(metavar="DIR", help="Write report.html and figures to this folder.")] = None,
    full: Annotated[bool, Option("--full", help="Print all that was found: reasons and every shape.")] = False,
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
    from hpxfer.outside import Choices, judge_by_options

    found = judge_by_options(
        table,
        columns=pairs(mapped, "--map", str),
        shape=shape or (),
        control=control,
        base=base or (),
        duplicates=duplicates,
        empty=empty,
        hp=hp,
        regret_limit=None if regret_limit is None else pairs([regret_limit], "--regret-limit", float),
        error=error,
        tolerance=tolerance,
        unit=unit,
        tracker=Choices(metric=metric, reduce=reduce, pattern=pattern, steps=steps),
        save=save_table,
    )
    files = [*([] if save_table is None else [save_table]), *([] if report is None else found.write(report))]
    hint = [] if full else ["Reasons and tables: --full prints them."]
    said = [(found.to_text() if full else found.summary()).rstrip("\n"), *hint, *([written(files)] if files else [])]
    data = {"files": [str(file) for file in files]}
    answer(lambda: {**found.to_dict(), **data}, lambda: "\n".join([*said, found.next_step()]), as_json=as_json)
