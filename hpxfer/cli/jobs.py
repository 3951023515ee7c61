"""Commands for a job on a Ray cluster: `hpxfer status|logs|stop|fetch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, ResultsRoot
from hpxfer.cli.output import INTERRUPTED, OK, TRIALS_FAILED, say, warn

if TYPE_CHECKING:
    from hpxfer.jobs.client import JobInfo

Address = Annotated[
    str,
    typer.Option(
        "--address", envvar="RAY_API_SERVER_ADDRESS", help="The address of Ray's dashboard on the cluster's head."
    ),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="The id that `hpxfer submit` printed.")]

HERE = "http://127.0.0.1:8265"


def status(job: Job, address: Address = HERE, as_json: AsJson = False) -> None:
    """Show the state of a job, how far its sweep is, and why it failed. The exit code is 1 if it failed.

    Example: hpxfer status hpxfer-quickstart-1a2b3c4d
    """
    from hpxfer.jobs import commands as job_commands
    from hpxfer.jobs.client import connect
    from hpxfer.jobs.text import status_text

    found = job_commands.status(connect(address), job)
    say(json.dumps(found.to_dict()) if as_json else status_text(found))
    raise typer.Exit(_exit_code(found.info))


def logs(
    job: Job,
    address: Address = HERE,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until the job ends. Ctrl-C ends the output, not the job.")
    ] = False,
) -> None:
    """Print the output of a job.

    Example: hpxfer logs hpxfer-quickstart-1a2b3c4d --follow
    """
    from hpxfer.jobs.client import checked_id, connect

    cluster = connect(address)
    if not follow:
        say(cluster.logs(checked_id(job)).rstrip("\n"))
        return
    try:
        for lines in cluster.follow(checked_id(job)):
            typer.echo(lines, nl=False)
    except KeyboardInterrupt:
        say(f"the output ends here, the job goes on; next: hpxfer status {job}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def stop(job: Job, address: Address = HERE) -> None:
    """End a job. Its results are stored, and submitting the sweep again goes on from there.

    Example: hpxfer stop hpxfer-quickstart-1a2b3c4d
    """
    from hpxfer.jobs.client import checked_id, connect

    cluster = connect(address)
    before = cluster.info(checked_id(job))
    if before.over:
        say(f"{job}: has ended before: {before.state}")
        return
    after = cluster.stop(job)
    say(f"{job}: {after.state}; its results are stored; submit the sweep again to go on")


def fetch(job: Job, results: ResultsRoot = Path("results"), address: Address = HERE, as_json: AsJson = False) -> None:
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
        say(f"next: hpxfer report {found.folder}", err=True)


def _exit_code(info: JobInfo) -> int:
    return TRIALS_FAILED if info.state == "FAILED" else OK


STATUS = Command(name="status", run=status)
LOGS = Command(name="logs", run=logs)
STOP = Command(name="stop", run=stop)
FETCH = Command(name="fetch", run=fetch)
