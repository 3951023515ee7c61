"""Ending: how an attempt at a trial ended. `cause` is the table; what Slurm says of the attempt is one of its rows."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from hpxfer.trainer.lines import Groups, Point, Result
from hpxfer.trainer.supervised import Exit

Kind = Literal["bug", "input", "memory", "lost", "timeout"]
TRY_AGAIN, BAD_INPUT = 75, 78  # EX_TEMPFAIL and EX_CONFIG of sysexits.h
# Exit codes, and signals as negative numbers: SIGTERM, SIGINT and SIGKILL of others. 126 and 127 are a shell's, of a
# program that may not be run or is not there.
_CODES: Mapping[int, Kind] = {
    TRY_AGAIN: "lost",
    -15: "lost",
    -2: "lost",
    -9: "memory",
    BAD_INPUT: "input",
    126: "input",
    127: "input",
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


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was seen of an attempt."""

    exit: Exit
    steps: int
    last_step: int | None = None  # with a loss, of this attempt or one before
    result: Result | None = None
    divergence: str | None = None  # what was wrong with a reported loss
    fault: str | None = None  # a line that broke the protocol
    stopped: bool = False  # we were asked to stop it
    timeout: str | None = None
    stdout: str = ""
    stderr: str = ""
    error_file: str = ""  # the content of torch's
    slurm_state: str = ""
    nan_exit: tuple[str, ...] = ()
    nodes: int = 1
    speaks: bool = True


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
    groups: tuple[Groups, ...] = ()
    resumed: bool = False  # this attempt went on from a checkpoint
    advanced: bool = False  # this attempt wrote a checkpoint of a later step than all before
    attempt: int = 1
    wall_s: float = 0.0


def cause(seen: Facts) -> Ending:
    """Return how an attempt ended: the first row that applies.

    What was said or done comes before what the exit code shows, and that before the log. A trial that has finished or
    diverged is over. Of a failure the message ends with the end of the log, and its kind says what comes next: `memory`
    and `timeout` are tried once more, `lost` goes on from the newest checkpoint, and the others need the user.
    """
    result, end = seen.result, seen.exit
    code, error = _root_cause(seen)
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    log = f"{error}\n{seen.stderr[-_LOOK_CHARS:]}"
    last_line = next((line for line in reversed(seen.stderr.splitlines()) if line.strip()), "")
    # Whether a command that exits with 0 has trained to its end. Who does not speak is believed.
    complete = end.code == 0 and (not seen.speaks or (seen.last_step is not None and seen.last_step >= seen.steps - 1))
    final = None if result is None else result.validation_loss
    slurm = _SLURM.get(seen.slurm_state.partition(" ")[0])
    nan_exit = next((found for pattern in seen.nan_exit if (found := re.search(pattern, seen.stderr))), None)
    no_memory, no_peer = _MEMORY.search(log), _PEERS.search(log)
    losses = "no loss" if seen.last_step is None else f"losses up to step {seen.last_step} of {seen.steps}"
    rows: tuple[tuple[object, Kind | Literal["finished", "diverged"] | None, str], ...] = (
        (result and result.status == "diverged", "diverged", "the trainer declared it"),
        (final is not None and not math.isfinite(final), "diverged", f"validation loss {final}"),
        (result and final is None and seen.last_step is None, "bug", "it says finished, and reported no loss"),
        (result, "finished", ""),
        (seen.divergence, "diverged", seen.divergence or ""),
        (seen.stopped and not complete, "lost", "it was stopped"),
        (seen.fault, "bug", seen.fault or ""),
        (seen.timeout, "timeout", seen.timeout or ""),
        (end.not_started, "memory" if end.no_memory else "input", f"the command cannot be started: {end.not_started}"),
        (end.lost or end.code is None, "lost", end.lost or "it did not end"),
        (slurm, slurm, f"Slurm says {seen.slurm_state}"),
        (complete, "finished", ""),
        (end.code == 0 and end.asked, "lost", "SIGTERM from others, and exit code 0 before the last step"),
        (end.code == 0, "bug", f"exit code 0 without a result line and without the last step: it reported {losses}"),
        (code in _CODES, _CODES.get(code), how),
        (nan_exit, "diverged", f"{how}, and stderr has {nan_exit and nan_exit[0][:200]!r}"),
        (no_memory, "memory", f"{how}, and the log says {no_memory and no_memory[0]!r}"),
        (no_peer and seen.nodes > 1, "lost", f"{how}, and the log says {no_peer and no_peer[0]!r}"),
        (_MISSING.search(last_line) or error.startswith("FileNotFoundError:"), "input", how),
        (True, "bug", f"{how}: {error}" if error else how),
    )
    kind, why = next((kind, why) for applies, kind, why in rows if applies)
    if kind == "finished" or kind == "diverged":
        return Ending(status=kind, message=why)
    left = f"processes that SIGKILL did not end: {', '.join(map(str, end.left))}" if end.left else ""
    killed = f"meanwhile the system killed {end.oom_kills} processes of this control group for lack of memory"
    parts = [why, left, killed if end.oom_kills else "", tail(seen.stderr) or tail(seen.stdout)]
    return Ending(status="failed", kind=kind, message="\n".join(filter(None, parts)))


def tail(log: str) -> str:
    """Return the end of a log: at most 40 lines and 4000 characters.

    What torchrun says of itself when a rank has failed is longer than that, and is left out if the rank said anything.
    """
    found = _TORCHRUN.search(log)
    own = log[: found.start()].strip() if found else ""
    return "\n".join((own or log.rstrip()).splitlines()[-_TAIL_LINES:])[-_TAIL_CHARS:]


def _root_cause(seen: Facts) -> tuple[int, str]:
    """Return the exit code, or minus the signal, of the process that failed first, and its message for torchrun.

    torchrun exits with 1 whatever a rank did. It hands the rank's code on in its error file or on stderr. A shell adds
    128 to the number of a signal.
    """
    error: Any = {}
    with suppress(ValueError, RecursionError, KeyError, TypeError):
        error = json.loads(seen.error_file)["message"]
    error = error if isinstance(error, dict) else {"message": error}
    code, log = error.get("errorCode"), seen.stderr[-_LOOK_CHARS:]
    if not isinstance(code, int):
        signaled, first = _SIGNALED.search(log), _ROOT_CAUSE.search(log)
        code = -int(signaled[1]) if signaled else int(first[1]) if first else seen.exit.code or 0
    return 128 - code if 128 < code <= 128 + 64 else code, str(error.get("message") or "")


_ASK_S = 10.0


def slurm_state(since: datetime) -> str:
    """Return the first state of `_SLURM` that Slurm gives the job of this process, or a step of it.

    It is empty outside of Slurm, without `sacct`, and if that does not answer in time.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not re.fullmatch(r"\d+(_\d+)?", job):
        return ""
    command = ["sacct", "--jobs", job, "--noheader", "--parsable2", "--format", "State,End"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return telling_state(done.stdout, since)


def telling_state(said: str, since: datetime) -> str:
    """Return the first state of `_SLURM` in lines of `State|End`. Steps that ended before `since` belong to others."""
    for state, _, end in (line.partition("|") for line in said.splitlines()):
        try:
            is_old = datetime.fromisoformat(end.strip()) < since.replace(microsecond=0, tzinfo=None)
        except ValueError:  # `Unknown`
            is_old = False
        if state.partition(" ")[0] in _SLURM and not is_old:
            return state
    return ""
