"""`hpxfer rekey`: give the results of an older hpxfer today's trial ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Folder
from hpxfer.cli.output import say, warn
from hpxfer.errors import HpxferError

if TYPE_CHECKING:
    from hpxfer.rekey import Rekeyed

_MOST_NAMED = 5


def rekey(
    results: Folder,
    to: Annotated[
        Path | None,
        typer.Option(help="Leave RESULTS as they are and write a copy with today's ids into this new folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite the trial ids of results that an older hpxfer stored, so that `hpxfer run` goes on from them.

    Trains nothing and changes no number. In place, the old files are kept in the folder before-rekey beside the new
    ones. If it is interrupted, the same command goes on; if nothing is to do, it changes nothing.

    \b
    Examples:
      hpxfer rekey results/quickstart
      hpxfer rekey results/quickstart --to results/rekeyed/quickstart
    """
    from hpxfer.rekey import rekey as write_ids

    done = write_ids(results, to, on_wait=lambda text: say(text, err=True))
    if done.problems and not done.files and not done.checkpoints:
        raise HpxferError(
            f"{done.where}: no file with old ids can be rewritten, and these files cannot be read:\n"
            + "\n".join(done.problems)
            + "\nRestore them from a copy, or remove them and run the sweep again."
        )
    warn([*done.problems, *_kept(done)])
    say(json.dumps(done.to_dict()) if as_json else _text(done))


def _kept(done: Rekeyed) -> list[str]:
    """Return what to say of rows whose ids could not be translated."""
    if not done.unproven:
        return []
    named = ", ".join(done.unproven[:_MOST_NAMED]) + (", ..." if len(done.unproven) > _MOST_NAMED else "")
    return [
        f"{len(done.unproven)} rows do not give their own id when it is computed again; they are kept with the ids "
        f"that they have, and belong to no trial of the sweep: {named}"
    ]


def _text(done: Rekeyed) -> str:
    if not done.files and not done.checkpoints:
        return f"{done.where}: nothing to do, all ids are today's"
    written = f"{_counted(done.files, 'file')} and {_counted(done.checkpoints, 'checkpoint')}"
    verb = "has" if len(done.files) + len(done.checkpoints) == 1 else "have"
    if not done.files or not done.checkpoints:
        written = _counted(done.files, "file") if done.files else _counted(done.checkpoints, "checkpoint")
    lines = [f"{done.where}: {written} {verb} today's ids now"]
    if done.backup is not None:
        lines.append(f"the old files are in {done.backup}; remove it when you do not need them any more")
    return "\n".join(lines)


def _counted(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}" if len(names) == 1 else f"{len(names)} {noun}s"


REKEY = Command(name="rekey", run=rekey)
