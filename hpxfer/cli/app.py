"""The Typer app: the table of commands, and the options that stand before a command's name.

A command is one new file in this room and one line in `COMMANDS`: a function whose arguments are its options and whose
docstring is its help, or a Typer app with commands of its own. It imports what it needs when it is called, so that
`hpxfer --help` is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hpxfer import __version__
from hpxfer.cli.bench import bench
from hpxfer.cli.check import check
from hpxfer.cli.data import data_app
from hpxfer.cli.explain import explain
from hpxfer.cli.fetch import fetch
from hpxfer.cli.init import init
from hpxfer.cli.judge import judge
from hpxfer.cli.limit import limit
from hpxfer.cli.list import list_
from hpxfer.cli.options import spread
from hpxfer.cli.output import say
from hpxfer.cli.plan import plan
from hpxfer.cli.recipe import recipe_app
from hpxfer.cli.report import report
from hpxfer.cli.run import run
from hpxfer.cli.schema import schema
from hpxfer.cli.submit import submit
from hpxfer.cli.watch import watch
from hpxfer.cli.weights import weights
from hpxfer.errors import brief

# `hpxfer --help` lists them in this order.
COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    "init": init,
    "data": data_app,
    "plan": plan,
    "run": run,
    "watch": watch,
    "list": list_,
    "report": report,
    "judge": judge,
    "recipe": recipe_app,
    "explain": explain,
    "weights": weights,
    "check": check,
    "limit": limit,
    "schema": schema,
    "bench": bench,
    "submit": submit,
    "fetch": fetch,
}
_UsageError: Any = typer.BadParameter.__base__  # of click, which Typer may bring itself


class TableGroup(TyperGroup):
    """The group of all commands, in the order of the table. Typer itself puts groups such as `recipe` last."""

    def __init__(self, *, commands: dict[str, Any], **attributes: Any) -> None:
        super().__init__(commands={name: commands[name] for name in COMMANDS if name in commands}, **attributes)

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Read the options before a command's name."""
        with _brief_complaints():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's name, options and arguments, and run it."""
        with _brief_complaints():
            return super().invoke(ctx)


@contextmanager
def _brief_complaints() -> Iterator[None]:
    """Make a complaint about what was given repeat only the start of it."""
    try:
        yield
    except _UsageError as error:
        error.message = brief(error.message)
        raise


app = typer.Typer(
    name="hpxfer",
    cls=TableGroup,
    help="Tune LR and initialization on a small MoE model, prove that they transfer, reuse them on the big one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        say(f"hpxfer {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


for _name, _command in COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(name=_name)(spread(_command))
