"""The Typer app: the commands of the table, and the options that stand before a command's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hpxfer import __version__
from hpxfer.cli.commands import COMMANDS, Command
from hpxfer.cli.output import say
from hpxfer.errors import brief

_UsageError: Any = typer.BadParameter.__base__  # of click, which Typer may bring itself


class TableGroup(TyperGroup):
    """The group of all commands, in the order of the table. Typer itself puts groups such as `bench` last."""

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


def _attach(target: typer.Typer, command: Command) -> typer.Typer:
    if isinstance(command.run, typer.Typer):
        target.add_typer(command.run, name=command.name)
    else:
        target.command(name=command.name)(command.run)
    return target


for _row in COMMANDS.rows():
    _attach(app, _row)
