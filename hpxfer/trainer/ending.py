"""Ending: how an attempt at a trial ended. `_cause` is the table; what Slurm says of the attempt is one of its rows."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from hpxfer.trainer.job import Job
from hpxfer.trainer.lines import Point, Reports, merged, reached

Kind = Literal["bug", "input", "memory", "lost", "timeout"]
TRY_AGAIN, BAD_INPUT = 75, 78  # EX_TEMPFAIL and EX_CONFIG of sysexits.h
# Exit codes, and signals as negative numbers: SIGTERM, SIGINT and SIGKILL of others. 126 and 127 are a shell's, of a
# program that may not be run or is not there.
_CODES: Mapping[int, Kind] = {
    **dict.fromkeys((TRY_AGAIN, -15, -2), "lost"),
    **dict.fromkeys((BAD_INPUT, 126, 127), "input"),
    -9: "memory",
}
_SLURM: Mapping[str, Kind] = {"PREEMPTED": "lost", "NODE_FAIL": "lost", "OUT_OF_MEMORY": "memory"}
_MEMORY = re.compile(
    r"out of memory|OutOfMemory|^MemoryError|can't allocate memory|Cannot allocate memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|is killed by signal: Killed",
    re.MULTILINE | re.IGNORECASE,
)
# What the ranks of the other nodes say when a node is gone.
_PEERS = re.compile(
    r"Rendezvous(Connection|Closed|Timeout)Error|C10d store has failed|ncclRemoteError"
    r"|Connection (reset|closed) by peer"
)
_MISSING = re.compile(r"No such file|^FileNotFoundError:|^ModuleNotFoundError:")
_SIGNALED = re.compile(r"SignalException: Process \d+ got signal: (\d+)")  # torchrun itself
_TORCHRUN = re.compile(r"^[WE]\d{4} .*torch/distributed/elastic/multiprocessing/api\.py:\d+\] ", re.MULTILINE)
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_TAIL_LINES, _TAIL_CHARS = 40, 4000
_LOOK_CHARS = 32_768  # of the end of stderr: what stands before was survived
_ASK_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a command ended."""

    code: int | None = None  # an exit code, or the negative number of a signal; None: it was not seen
    not_started: str | None = None  # why there was no command
    no_memory: bool = False  # the system had no memory or no process left to start it
    oom_kills: int = 0  # processes of the control group that were killed meanwhile for lack of memory
    lost: str | None = None  # why nobody knows: the supervisor was killed
    asked: bool = False  # others sent SIGTERM to the supervisor, and so to the command too, as Slurm does
    left: Sequence[int] = ()  # processes that SIGKILL did not end


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt ended, and what the trial has reported in all its attempts."""

    status: Literal["finished", "diverged", "failed"]
    kind: Kind | None = None  # of a failed one
    message: str = ""
    validation_loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the result line
    diverged_step: int | None = None
    points: tuple[Point, ...] = ()  # finite losses of all attempts; a later attempt wins from its first step on
    resumed: bool = False  # this attempt went on from a checkpoint
    advanced: bool = False  # this attempt wrote a checkpoint of a later step than all before
    attempt: int = 1
    wall_s: float = 0.0


def ending_of(
    job: Job,
    earlier: Sequence[Reports],
    own: Reports,
    end: Exit,
    *,
    stopped: bool = False,
    timeout: str | None = None,
    slurm: str = "",
    stdout: str = "",
    stderr: str = "",
    error_file: str = "",
    wall_s: float = 0.0,
) -> Ending:
    """Return how an attempt ended.

    `own` is what it reported, and `earlier` what the attempts before it did. `stopped`: it was asked to stop. `slurm`
    is what `slurm_state` gives, and the texts are those of its logs and of torch's error file. The message of a failure
    ends with the end of the log, and its kind says what comes next: `memory` and `timeout` are tried once more, `lost`
    goes on from the newest checkpoint, and the others need the user.
    """
    before, points, result = merged(earlier), merged([*earlier, own]), own.result
    last_step = points[-1].step if points else None
    status, kind, why = _cause(job, own, end, last_step, stopped, timeout, slurm, stderr, error_file)
    if status == "failed":
        left = f"processes that SIGKILL did not end: {', '.join(map(str, end.left))}" if end.left else ""
        killed = f"meanwhile the system killed {end.oom_kills} processes of this control group for lack of memory"
        why = "\n".join(filter(None, [why, left, killed if end.oom_kills else "", tail(stderr) or tail(stdout)]))
    step = own.divergence[0] if own.divergence else result.step if result else None
    if step is None and last_step is not None:
        step = last_step + 1
    return Ending(
        status=status,
        kind=kind,
        message=why,
        validation_loss=result.validation_loss if result and status != "diverged" else None,
        metrics=dict(result.metrics) if result and status != "diverged" else {},
        diverged_step=step if status == "diverged" else None,
        points=points,
        resumed=bool(before and own.points) and own.points[0].step > before[0].step,
        advanced=reached([own]) > reached(earlier),
        attempt=own.attempt,
        wall_s=wall_s,
    )


def _cause(
    job: Job,
    own: Reports,
    end: Exit,
    last_step: int | None,
    stopped: bool,
    timeout: str | None,
    slurm: str,
    stderr: str,
    error_file: str,
) -> tuple[Literal["finished", "diverged", "failed"], Kind | None, str]:
    """Return status, kind and reason of an end: the first row that applies.

    What was said or done comes before what the exit code shows, and that before the log. A trial that has finished or
    diverged is over.
    """
    result, final = own.result, None if own.result is None else own.result.validation_loss
    log = stderr[-_LOOK_CHARS:]
    code, error = _root_cause(end, log, error_file)
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    last_line = next((line for line in reversed(stderr.splitlines()) if line.strip()), "")
    # Whether a command that exits with 0 has trained to its end. Who does not speak is believed.
    complete = end.code == 0 and (not job.speaks or (last_step is not None and last_step >= job.steps - 1))
    of_slurm = _SLURM.get(slurm.partition(" ")[0])
    nan_exit = next((found[0] for each in job.nan_exit if (found := re.search(each, stderr))), None)
    memory, peer = (found and found[0] for found in (each.search(f"{error}\n{log}") for each in (_MEMORY, _PEERS)))
    losses = "no loss" if last_step is None else f"losses up to step {last_step} of {job.steps}"
    rows: tuple[tuple[object, Kind | Literal["finished", "diverged"] | None, str], ...] = (
        (result and result.status == "diverged", "diverged", "the trainer declared it"),
        (final is not None and not math.isfinite(final), "diverged", f"validation loss {final}"),
        (result and final is None and last_step is None, "bug", "it says finished, and reported no loss"),
        (result, "finished", ""),
        (own.divergence, "diverged", own.divergence[1] if own.divergence else ""),
        (stopped and not complete, "lost", "it was stopped"),
        (own.fault, "bug", str(own.fault)),
        (timeout, "timeout", str(timeout)),
        (end.not_started, "memory" if end.no_memory else "input", f"the command cannot be started: {end.not_started}"),
        (end.lost or end.code is None, "lost", end.lost or "it did not end"),
        (of_slurm, of_slurm, f"Slurm says {slurm}"),
        (complete, "finished", ""),
        (end.code == 0 and end.asked, "lost", "SIGTERM from others, and exit code 0 before the last step"),
        (end.code == 0, "bug", f"exit code 0 without a result line and without the last step: it reported {losses}"),
        (code in _CODES, _CODES.get(code), how),
        (nan_exit, "diverged", f"{how}, and stderr has {str(nan_exit)[:200]!r}"),
        (memory, "memory", f"{how}, and the log says {memory!r}"),
        (peer and job.nodes > 1, "lost", f"{how}, and the log says {peer!r}"),
        (_MISSING.search(last_line) or error.startswith("FileNotFoundError:"), "input", how),
        (True, "bug", f"{how}: {error}" if error else how),
    )
    kind, why = next((kind, why) for applies, kind, why in rows if applies)
    return (kind, None, why) if kind == "finished" or kind == "diverged" else ("failed", kind, why)


def tail(log: str) -> str:
    """Return the end of a log: at most 40 lines and 4000 characters.

    What torchrun says of itself when a rank has failed is longer than that, and is left out if the rank said anything.
    """
    found = _TORCHRUN.search(log)
    own = log[: found.start()].strip() if found else ""
    return "\n".join((own or log.rstrip()).splitlines()[-_TAIL_LINES:])[-_TAIL_CHARS:]


def _root_cause(end: Exit, log: str, error_file: str) -> tuple[int, str]:
    """Return the exit code, or minus the signal, of the process that failed first, and its message for torchrun.

    torchrun exits with 1 whatever a rank did. It hands the rank's code on in its error file or on stderr. A shell adds
    128 to the number of a signal.
    """
    error: Any = {}
    with suppress(ValueError, RecursionError, KeyError, TypeError):
        error = json.loads(error_file)["message"]
    error = error if isinstance(error, dict) else {"message": error}
    code = error.get("errorCode")
    if not isinstance(code, int):
        signaled, first = _SIGNALED.search(log), _ROOT_CAUSE.search(log)
        code = -int(signaled[1]) if signaled else int(first[1]) if first else end.code or 0
    return 128 - code if 128 < code <= 128 + 64 else code, str(error.get("message") or "")


def slurm_state(since: datetime) -> str:
    """Return the first state of `_SLURM` that Slurm gives the job of this process, or a step of it.

    Steps that ended before `since` belong to others. It is empty outside of Slurm, without `sacct`, and if that does
    not answer in time.
    """
    job, since = os.environ.get("SLURM_JOB_ID", ""), since.replace(microsecond=0, tzinfo=None)
    if not re.fullmatch(r"\d+(_\d+)?", job):
        return ""
    command = ["sacct", "--jobs", job, "--noheader", "--parsable2", "--format", "State,End"]
    with suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASK_S, check=True
        )
        for line in done.stdout.splitlines():
            state, _, ended = line.partition("|")
            is_old = False
            with suppress(ValueError):  # `Unknown`
                is_old = datetime.fromisoformat(ended.strip()) < since
            if state.partition(" ")[0] in _SLURM and not is_old:
                return state
    return ""
