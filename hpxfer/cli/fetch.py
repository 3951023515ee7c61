"""`hpxfer fetch`: bring the results of a job on a Ray cluster home."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import Address, AsJson, ResultsRoot
from hpxfer.cli.output import say, warn
from hpxfer.jobs.request import DEFAULT_ADDRESS


def fetch(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The id that `hpxfer submit` printed.")],
    results: ResultsRoot = Path("results"),
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Copy the stored results of a job to this machine, finished or not. Results that are here already stay.

    Example: hpxfer fetch hpxfer-quickstart-1a2b3c4d
    """
    from hpxfer.jobs import commands as job_commands
    from hpxfer.jobs.client import connect

    found = job_commands.fetch(connect(address), job, results, on_wait=lambda text: say(text, err=True))
    warn(found.problems)
    if as_json:
        say(json.dumps({"folder": str(found.folder), "num_new": found.num_new, "num_known": found.num_known}))
    else:
        say(f"{found.folder}: {found.num_new} trials are new, {found.num_known} were here")
        say(f"next: {shlex.join(['hpxfer', 'report', str(found.folder)])}", err=True)


FETCH = Command(name="fetch", run=fetch)
