"""The app, and what its commands share: options, exit codes, how they speak.

Exit codes: 0 ok, 1 trials failed or a check was missed, 2 bad input. What a program reads goes to stdout, progress and
errors to stderr.
Every command imports what it needs when it runs, so that `hpxfer --help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.errors import HpxferError
from hpxfer.storage.uri import spelled

if TYPE_CHECKING:
    from hpxfer.scaling.table import Optimizer

OK, TRIALS_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
MISSED = 1

app = typer.Typer(
    name="hpxfer",
    help="Tune LR and initialization on a small MoE model, prove that they transfer, reuse them on the big one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Sweep = Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep file, e.g. sweeps/quickstart.yaml.")]
Folder = Annotated[str, typer.Argument(metavar="RESULTS", help="A results folder or its URI, e.g. results/quickstart.")]
ResultsRoot = Annotated[Path, typer.Option("--results", help="The folder above the sweep's own.")]
RootOrUri = Annotated[
    str | None,
    typer.Option("--results", help="The folder or URI above the sweep's own; default: its storage, or results."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for a program to read.")]
Name = Annotated[str | None, typer.Option("--parameterization", help="By name; default: the sweep's first.")]


def column(optimizer: str | None) -> Optimizer | None:
    match optimizer:
        case None:
            return None
        case "adam" | "adamw":
            return "adam"
        case "sgd":
            return "sgd"
        case _:
            raise HpxferError(f"--optimizer must be adam or sgd, got {optimizer!r}")


def warn(problems: Iterable[str]) -> None:
    for problem in problems:
        say(f"warning: {problem}", err=True)


def written(files: Sequence[Path | str]) -> str:
    return "written:\n" + "\n".join(f"  {one}" for one in files)


def say(text: str, *, err: bool = False) -> None:
    with nullcontext() if err else to_stdout():
        typer.echo(spelled(text), err=err)


@contextmanager
def to_stdout() -> Iterator[None]:
    """Make an HpxferError of a stdout that cannot be written while entered."""
    try:
        yield
    except BrokenPipeError:
        raise  # a reader that has enough, which typer ends quietly
    except OSError as error:
        # What did not go out would be tried again at the end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise HpxferError(f"stdout: cannot be written: {error.strerror}; make room, or send it elsewhere") from None
