"""The table of commands. `hpxfer --help` lists them in this order.

A command is one new file in this room, which defines its row, and one line in `COMMANDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import typer

from hpxfer.registry.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command. Typer reads its arguments, its options and its help from `run`.

    `run` imports what it needs when it is called, so that `hpxfer --help` is quick.
    """

    name: str
    run: Callable[..., None] | typer.Typer  # a function, or the Typer app of a command that has commands of its own


COMMANDS: Rows[Command] = Rows(
    "command",
    {
        "init": "hpxfer.cli.init:INIT",
        "data": "hpxfer.cli.data:DATA",
        "plan": "hpxfer.cli.plan:PLAN",
        "run": "hpxfer.cli.run:RUN",
        "watch": "hpxfer.cli.watch:WATCH",
        "list": "hpxfer.cli.list:LIST",
        "report": "hpxfer.cli.report:REPORT",
        "judge": "hpxfer.cli.judge:JUDGE",
        "recipe": "hpxfer.cli.recipe:RECIPE",
        "predict": "hpxfer.cli.predict:PREDICT",
        "export": "hpxfer.cli.export:EXPORT",
        "weights": "hpxfer.cli.weights:WEIGHTS",
        "explain": "hpxfer.cli.explain:EXPLAIN",
        "check": "hpxfer.cli.check:CHECK",
        "limit": "hpxfer.cli.limit:LIMIT",
        "schema": "hpxfer.cli.schema:SCHEMA",
        "bench": "hpxfer.cli.bench:BENCH",
        "submit": "hpxfer.cli.submit:SUBMIT",
        "fetch": "hpxfer.cli.fetch:FETCH",
    },
)
