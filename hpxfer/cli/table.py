"""`hpxfer table`: the table of runs that `hpxfer judge` reads, of a tracker or of a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.judge import Map, pairs
from hpxfer.cli.options import Folder
from hpxfer.cli.output import say, written

if TYPE_CHECKING:
    from hpxfer.outside.imports.logged import LoggedRun

Output = Annotated[Path, typer.Option(metavar="TABLE", help="The new file, .csv or .parquet.")]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="KEY", help="A key that becomes a column of its own name; may be repeated."),
]
Metric = Annotated[
    str | None, typer.Option(help="The metric that is the loss; default: the only held-out loss, else of training.")
]
Reduce = Annotated[
    str | None,
    typer.Option(
        metavar="last|tail",
        help="Its last point, or the mean of its last 5% of points; default: last of a held-out loss.",
    ),
]
Pattern = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Named groups are keys, read from a run's name, e.g. 'lr(?P<lr>[^_]+)'."),
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="Where a run has finished; default: the last step of its shape.")
]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def table() -> None:
    """Write the table of runs that `hpxfer judge` reads.

    \b
    Examples:
      hpxfer table wandb me/moe --map value=lr --map scale=width --map seed=seed --output runs.parquet
      hpxfer table results results/quickstart --output quickstart.csv
    """


@app.command()
def wandb(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="ENTITY/PROJECT, or a folder of wandb.")],
    output: Output,
    mapped: Map = None,
    keep: Keep = None,
    metric: Metric = None,
    reduce: Reduce = None,
    pattern: Pattern = None,
    steps: Steps = None,
) -> None:
    """Write the table of runs of Weights & Biases: --map names keys of their config.

    \b
    Examples:
      hpxfer table wandb me/moe --map value=lr --map scale=width --map seed=seed --output runs.parquet
    """
    from hpxfer.outside.imports.wandb import wandb_runs

    _write(wandb_runs(source), source, output, mapped, keep, metric, reduce, pattern, steps)


@app.command()
def mlflow(
    source: Annotated[str, typer.Argument(metavar="URI", help="A tracking URI, e.g. sqlite:///mlflow.db.")],
    output: Output,
    experiment: Annotated[str | None, typer.Option(help="Its name; default: the only one with runs.")] = None,
    mapped: Map = None,
    keep: Keep = None,
    metric: Metric = None,
    reduce: Reduce = None,
    pattern: Pattern = None,
    steps: Steps = None,
) -> None:
    """Write the table of runs of an MLflow experiment: --map names their parameters.

    \b
    Examples:
      hpxfer table mlflow sqlite:///mlflow.db --map value=lr --map scale=width --map seed=seed --output runs.csv
    """
    from hpxfer.outside.imports.mlflow import mlflow_runs

    _write(mlflow_runs(source, experiment), source, output, mapped, keep, metric, reduce, pattern, steps)


@app.command()
def tensorboard(
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="The folder that TensorBoard is given.")],
    output: Output,
    mapped: Map = None,
    keep: Keep = None,
    metric: Metric = None,
    reduce: Reduce = None,
    pattern: Pattern = None,
    steps: Steps = None,
) -> None:
    """Write the table of runs of TensorBoard: --map names HParams, or groups of --pattern in a folder's name.

    \b
    Examples:
      hpxfer table tensorboard runs --pattern 'w(?P<width>[0-9]+)_lr(?P<lr>[^_]+)_s(?P<seed>[0-9]+)' \\
        --map value=lr --map scale=width --map seed=seed --output runs.csv
    """
    from hpxfer.outside.imports.tensorboard import tensorboard_runs

    _write(tensorboard_runs(source), source, output, mapped, keep, metric, reduce, pattern, steps)


@app.command()
def results(
    folder: Folder,
    output: Output,
    loss: Annotated[str | None, typer.Option("--loss", help="A loss, as in judge.loss; default: the sweep's.")] = None,
) -> None:
    """Write the table of a results folder: every cell of every line, with the base marked.

    \b
    Examples:
      hpxfer table results results/quickstart --output quickstart.csv
    """
    from hpxfer.outside.export import table_of
    from hpxfer.outside.write import write_table
    from hpxfer.results import load_results

    write_table(table_of(load_results(folder), loss), output)
    say(written([output]))


def _write(
    runs: Sequence[LoggedRun],
    where: str,
    output: Path,
    mapped: Sequence[str] | None,
    keep: Sequence[str] | None,
    metric: str | None,
    reduce: str | None,
    pattern: str | None,
    steps: int | None,
) -> None:
    """Write the table of the runs of a tracker, and print what was chosen and dropped."""
    from hpxfer.outside.imports.tabulate import tabulate
    from hpxfer.outside.write import write_table

    found = tabulate(
        runs,
        where=where,
        columns=pairs(mapped or (), "--map"),
        keep=keep or (),
        metric=metric,
        reduce=reduce,
        pattern=pattern,
        steps=steps,
    )
    write_table(found.frame, output)
    say("\n".join([*(f"- {note}" for note in found.notes), written([output])]))


TABLE = Command(name="table", run=app)
