"""`hpxfer fetch`: bring the results of a job on a Ray cluster home."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hpxfer.cli.options import Address, AsJson
from hpxfer.cli.output import answer, say, warn
from hpxfer.jobs import DEFAULT_ADDRESS


def fetch(
    job: Annotated[str, Argument(metavar="JOB", help="The id that `hpxfer submit` printed.")],
    results: Annotated[Path, Option(help="The folder that holds the sweep's results folder.")] = Path("results"),
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Copy the stored results of a job to this machine, finished or not. Results that are here already stay.

    Example: hpxfer fetch hpxfer-quickstart-1a2b3c4d
    """
    from hpxfer.jobs import commands as jobs
    from hpxfer.jobs.client import connect

    found = jobs.fetch(connect(address), job, results, on_wait=lambda text: say(text, err=True))
    warn(found.problems)
    counts = {"folder": str(found.folder), "num_new": found.num_new, "num_known": found.num_known}
    text = f"{found.folder}: {found.num_new} trials are new, {found.num_known} were here"
    answer(lambda: counts, lambda: text, as_json=as_json)
    if not as_json:
        say(f"next: {shlex.join(['hpxfer', 'report', str(found.folder)])}", err=True)
