"""The texts that `hpxfer status` prints: about one job, and about all jobs of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from hpxfer.host.output import aligned, spell_time
from hpxfer.jobs.client import JobInfo
from hpxfer.jobs.commands import HOST_KEY, ROOT_KEY, SWEEP_KEY, JobStatus
from hpxfer.jobs.next_command import next_command
from hpxfer.progress.status import RunStatus, run_status_from_dict

# How many lines of its log are shown of a job that failed.
MOST_LINES = 12
_RAYS_OWN = "Running entrypoint for job"


_HEADINGS = ("job", "sweep", "state", "started", "results")


def jobs_text(jobs: Sequence[JobInfo]) -> str:
    """Return a table of the jobs: id, sweep, state, start in this machine's time, and where the results are."""
    return "\n".join(aligned([_HEADINGS, *(_cells(info) for info in jobs)], right_from=len(_HEADINGS)))


def _cells(info: JobInfo) -> tuple[str, ...]:
    started = "" if info.started is None else f"{datetime.fromtimestamp(info.started):%Y-%m-%d %H:%M}"
    return (info.id, info.metadata[SWEEP_KEY], info.state, started, info.metadata[ROOT_KEY])


def status_text(status: JobStatus, address: str) -> str:
    """Return the job's state, the progress of its sweep, and the end of its log if it failed."""
    return "\n".join(_lines(status, address))


def _lines(status: JobStatus, address: str) -> Iterator[str]:
    info = status.info
    yield f"{info.id}: {info.state}{_times(info)}"
    if SWEEP_KEY in info.metadata:
        root = info.metadata[ROOT_KEY]
        host = "" if "://" in root else f" on {info.metadata.get(HOST_KEY, 'the head')}"
        yield f"sweep {info.metadata[SWEEP_KEY]}, results below {root}{host}"
    if "progress" in status.progress:
        run_status = run_status_from_dict(status.progress["progress"], info.id)
        if info.over or status.progress["state"] == "running":
            yield _progress(run_status, running=not info.over)
        else:
            yield "starting"  # the progress is that of an earlier run
    if info.state in ("FAILED", "PENDING"):
        yield from _why(info, address)


def _times(info: JobInfo) -> str:
    if info.started is None:
        return ""
    if info.ended is not None:
        return f" after {spell_time(max(0.0, info.ended - info.started))}"
    # The difference of two machines' clocks: good enough to read, and nothing depends on it.
    return f" for {spell_time(max(0.0, time.time() - info.started))}"


def _progress(run_status: RunStatus, *, running: bool) -> str:
    done = sum(shape.num_done for shape in run_status.shapes)
    total = sum(shape.num_trials for shape in run_status.shapes)
    text = f"{done} of {'at most ' if run_status.at_most else ''}{total} trials done"
    for count, what in ((run_status.diverged, "diverged"), (run_status.failed, "failed")):
        text += f", {count} {what}" if count else ""
    if running and run_status.eta_s is not None:
        text += f", about {spell_time(run_status.eta_s)} left"
    return text


def _why(info: JobInfo, address: str) -> Iterator[str]:
    """Yield Ray's message about the job. Of a job that ran and failed it is the end of its log, without Ray's first
    line.
    """
    lines = info.message.strip().splitlines()
    if info.exit_code is not None:
        whole = next_command("logs", info.id, address=address)
        yield f"exit code {info.exit_code}; the end of its log (all of it: {whole}):"
        lines = [
            line for line in lines[1:] if not line.startswith(_RAYS_OWN) and "Runtime env is setting up" not in line
        ]
    yield from (f"  {line}" for line in lines[-MOST_LINES:])
