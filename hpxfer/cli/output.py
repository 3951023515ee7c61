"""How the commands speak: what a program reads goes to stdout; progress, warnings and errors go to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import typer

from hpxfer.errors import HpxferError, brief, spelled

# Exit codes. Bad input is 2, which `main` returns; 130 is what shells give a program that Ctrl-C ended.
OK, TRIALS_FAILED, CHECK_MISSED, INTERRUPTED = 0, 1, 1, 130


def answer(
    data: Callable[[], Any], text: Callable[[], str], *, as_json: bool, files: Sequence[Path | str] | None = None
) -> None:
    """Print the answer of a command as JSON or as text, each with the files that it wrote."""
    if as_json:
        found = data()
        say(json.dumps(found if files is None else {**found, "files": [str(file) for file in files]}))
    else:
        parts = [text(), *([written(files)] if files else [])]
        say("\n\n".join(part for part in parts if part))


def say(text: str, *, err: bool = False) -> None:
    """Print a text on stdout, or on stderr. Raise HpxferError if stdout cannot be written."""
    with nullcontext() if err else to_stdout():
        typer.echo(spelled(text), err=err)


def warn(problems: Iterable[str]) -> None:
    """Print each problem as a warning on stderr."""
    for problem in problems:
        say(brief(f"warning: {problem}"), err=True)


def written(files: Iterable[Path | str]) -> str:
    """Return the text that lists the files a command has written."""
    return "\n".join(["written:", *(f"  {file}" for file in files)])


@contextmanager
def to_stdout() -> Iterator[None]:
    """Turn the OSError of a stdout that cannot be written into an HpxferError while entered."""
    try:
        yield
    except BrokenPipeError:
        raise  # The reader has read enough: typer ends the program without a message.
    except OSError as error:
        # Python would write the rest of the buffer again when it exits, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise HpxferError(f"stdout: cannot be written: {error.strerror}; make room, or send it elsewhere") from None
