"""Commands for a job on a Ray cluster: `hpxfer status|logs|stop|fetch`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, ResultsRoot
from hpxfer.cli.output import INTERRUPTED, OK, TRIALS_FAILED, say, warn
from hpxfer.jobs.next_command import ADDRESS_VARIABLE, DEFAULT_ADDRESS, next_command

if TYPE_CHECKING:
    from hpxfer.jobs.client import JobInfo

Address = Annotated[
    str,
    typer.Option("--address", envvar=ADDRESS_VARIABLE, help="The address of Ray's dashboard on the cluster's head."),
]
_ID = "The id that `hpxfer submit` printed, and that `hpxfer status` lists."
Job = Annotated[str, typer.Argument(metavar="JOB", help=_ID)]


def status(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help=f"{_ID} Without it, list the jobs.")] = None,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Show the state of a job, how far its sweep is, and why it failed; without a job, list the jobs.

    The exit code is 1 if the job failed. The list has the jobs that `hpxfer submit` has started, the latest first.

    \b
    Examples:
      hpxfer status
      hpxfer status hpxfer-quickstart-1a2b3c4d
    """
    from hpxfer.jobs import commands as job_commands
    from hpxfer.jobs.client import connect
    from hpxfer.jobs.text import jobs_text, status_text

    cluster = connect(address)
    if job is None:
        listed = job_commands.jobs(cluster)
        if as_json:
            say(json.dumps({"address": cluster.address, "jobs": [job_commands.job_data(info) for info in listed]}))
        elif listed:
            say(jobs_text(listed))
            say(f"next: {next_command('status', listed[0].id, address=cluster.address)}", err=True)
        else:
            say(f"{cluster.address}: has no job of `hpxfer submit`")
        return
    found = job_commands.status(cluster, job)
    say(json.dumps(found.to_dict()) if as_json else status_text(found, cluster.address))
    raise typer.Exit(_exit_code(found.info))


def logs(
    job: Job,
    address: Address = DEFAULT_ADDRESS,
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
        shown = next_command("status", job, address=cluster.address)
        say(f"the output ends here, the job goes on; next: {shown}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def stop(job: Job, address: Address = DEFAULT_ADDRESS) -> None:
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


def fetch(
    job: Job, results: ResultsRoot = Path("results"), address: Address = DEFAULT_ADDRESS, as_json: AsJson = False
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


def _exit_code(info: JobInfo) -> int:
    return TRIALS_FAILED if info.state == "FAILED" else OK


STATUS = Command(name="status", run=status)
LOGS = Command(name="logs", run=logs)
STOP = Command(name="stop", run=stop)
FETCH = Command(name="fetch", run=fetch)
