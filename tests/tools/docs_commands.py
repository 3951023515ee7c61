"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from docs_markdown import table


@cache
def app() -> Any:
    """Return the command line as a click group."""
    import hpxfer.cli  # noqa: F401  (registers the commands)
    from hpxfer.cli.app import app as typer_app

    return typer.main.get_command(typer_app)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield (name as typed, command) of every command and subcommand, in the order of `hpxfer --help`."""
    yield from _below("hpxfer", app())


def _below(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        yield f"{name} {word}", command
        if hasattr(command, "commands"):
            yield from _below(f"{name} {word}", command)


def overview_markdown(root: Path) -> str:
    """Return one row per command: its name and the first sentence of its help."""
    rows = []
    for name, command in commands():
        if name.count(" ") > 1:
            continue
        first = (command.help or "").partition("\n\n")[0].replace("\n", " ")
        rows.append((f"`{name}`", first.partition(". ")[0].rstrip(".")))
    return table(("command", "what it does"), rows)


def reference_markdown(root: Path) -> str:
    """Return a section per command with its whole help."""
    parts = []
    for name, command in commands():
        context = command.context_class(command, info_name=name, max_content_width=100, terminal_width=100)
        text = command.get_help(context)
        parts += [f"## {name}", f"```text\n{_plain(text)}\n```"]
    return "\n\n".join(parts)


def _plain(text: str) -> str:
    return "\n".join(row.rstrip() for row in text.strip().splitlines())
