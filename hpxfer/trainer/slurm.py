"""Slurm: what it says of the job in which a trial failed."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import datetime

# States that tell more than an exit code does, see `hpxfer.trainer.ending`.
TELLING = ("PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY")
_JOB = re.compile(r"\d+(_\d+)?")
_ASK_S = 10.0


def slurm_state(since: datetime) -> str:
    """Return the first telling state that Slurm gives the job of this process, or a step of it.

    Steps that ended before `since` belong to others. It is empty outside of Slurm, without `sacct`, and if that does
    not answer in time.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not _JOB.fullmatch(job):
        return ""
    command = ["sacct", "--jobs", job, "--noheader", "--parsable2", "--format", "State,End"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return telling_state(done.stdout, since) if done.returncode == 0 else ""


def telling_state(said: str, since: datetime) -> str:
    """Return the first telling state among lines of `State|End`, without steps that ended before `since`. Pure."""
    for line in said.splitlines():
        state, _, end = line.partition("|")
        if state.partition(" ")[0] in TELLING and not _ended_before(end, since):
            return state
    return ""


def _ended_before(end: str, since: datetime) -> bool:
    """Return whether a time as Slurm writes it is before another one, to the second. `Unknown` is not."""
    try:
        return datetime.fromisoformat(end.strip()) < since.replace(microsecond=0, tzinfo=None)
    except ValueError:
        return False
