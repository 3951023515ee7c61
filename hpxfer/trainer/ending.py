"""Ending: how an attempt at a trial ended, and what Slurm says of it: the first row of a table that applies."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from hpxfer.trainer.lines import Groups, Point, Result
from hpxfer.trainer.supervised import Exit

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


Kind = Literal["bug", "input", "memory", "lost", "timeout"]
TRY_AGAIN, BAD_INPUT = 75, 78  # EX_TEMPFAIL and EX_CONFIG of sysexits.h
_SIGINT, _SIGKILL, _SIGTERM = -2, -9, -15
_TAIL_LINES, _TAIL_CHARS = 40, 4000
_LOOK_CHARS = 32_768  # of the end of stderr: what stands before was survived
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


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was seen of an attempt."""

    exit: Exit
    steps: int
    last_step: int | None = None  # that was reported, by this attempt or one before
    has_loss: bool = False
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
    metrics: dict[str, float] = field(default_factory=dict)  # of the result line
    diverged_step: int | None = None
    points: tuple[Point, ...] = ()  # finite losses of all attempts; a later attempt wins from its first step on
    groups: tuple[Groups, ...] = ()
    resumed: bool = False  # this attempt went on from a checkpoint
    advanced: bool = False  # this attempt wrote a checkpoint of a later step than all before
    attempt: int = 1
    wall_s: float = 0.0


@dataclass(frozen=True)
class Cause:
    """What a row of the table says."""

    status: Literal["finished", "diverged", "failed"]
    kind: Kind | None = None
    why: str = ""


def cause(facts: Facts) -> Cause:
    """Return what the first row that applies says. The message of a failure ends with the end of the log."""
    found = next(said for row in ROWS if (said := row(facts)) is not None)
    if found.status != "failed":
        return found
    parts = [found.why, *_left(facts), *_memory_note(facts), tail(facts.stderr) or tail(facts.stdout)]
    return Cause(found.status, found.kind, "\n".join(part for part in parts if part))


def tail(log: str) -> str:
    """Return the end of a log: at most 40 lines and 4000 characters.

    What torchrun says of itself when a rank has failed is longer than that, and is left out if the rank said anything.
    """
    found = _TORCHRUN.search(log)
    own = log[: found.start()].strip() if found else ""
    return "\n".join((own or log.rstrip()).splitlines()[-_TAIL_LINES:])[-_TAIL_CHARS:]


def _result(facts: Facts) -> Cause | None:
    result = facts.result
    if result is None:
        return None
    if result.status == "diverged":
        return Cause("diverged", None, "the trainer declared it")
    if result.validation_loss is not None:
        if math.isfinite(result.validation_loss):
            return Cause("finished")
        return Cause("diverged", None, f"validation loss {result.validation_loss}")
    return Cause("finished") if facts.has_loss else Cause("failed", "bug", "it says finished, and reported no loss")


def _divergence(facts: Facts) -> Cause | None:
    return Cause("diverged", None, facts.divergence) if facts.divergence else None


def _stopped(facts: Facts) -> Cause | None:
    return Cause("failed", "lost", "it was stopped") if facts.stopped and not _is_complete(facts) else None


def _fault(facts: Facts) -> Cause | None:
    return Cause("failed", "bug", facts.fault) if facts.fault else None


def _timeout(facts: Facts) -> Cause | None:
    return Cause("failed", "timeout", facts.timeout) if facts.timeout else None


def _not_started(facts: Facts) -> Cause | None:
    if facts.exit.not_started is None:
        return None
    kind: Kind = "memory" if facts.exit.no_memory else "input"
    return Cause("failed", kind, f"the command cannot be started: {facts.exit.not_started}")


def _nobody_knows(facts: Facts) -> Cause | None:
    if facts.exit.lost is None and facts.exit.code is not None:
        return None
    return Cause("failed", "lost", facts.exit.lost or "it did not end")


def _slurm(facts: Facts) -> Cause | None:
    kinds: dict[str, Kind] = {"PREEMPTED": "lost", "NODE_FAIL": "lost", "OUT_OF_MEMORY": "memory"}
    kind = kinds.get(facts.slurm_state.partition(" ")[0])
    return Cause("failed", kind, f"Slurm says {facts.slurm_state}") if kind else None


def _exit_zero(facts: Facts) -> Cause | None:
    if facts.exit.code != 0:
        return None
    if _is_complete(facts):
        return Cause("finished")
    if facts.exit.asked:
        return Cause("failed", "lost", "SIGTERM from others, and exit code 0 before the last step")
    last = "no loss" if not facts.has_loss else f"losses up to step {facts.last_step} of {facts.steps}"
    return Cause("failed", "bug", f"exit code 0 without a result line and without the last step: it reported {last}")


def _code(facts: Facts) -> Cause | None:
    code = root_code(facts)
    kinds: dict[int, Kind] = {
        TRY_AGAIN: "lost",
        _SIGTERM: "lost",
        _SIGINT: "lost",
        _SIGKILL: "memory",
        BAD_INPUT: "input",
        127: "input",
        126: "input",
    }
    kind = kinds.get(code)
    return Cause("failed", kind, spelled(code)) if kind else None


def _nan_exit(facts: Facts) -> Cause | None:
    for pattern in facts.nan_exit:
        if found := re.search(pattern, facts.stderr):
            return Cause("diverged", None, f"{spelled(root_code(facts))}, and stderr has {found[0][:200]!r}")
    return None


def _no_memory(facts: Facts) -> Cause | None:
    return _by_text(facts, _MEMORY, "memory")


def _peers_gone(facts: Facts) -> Cause | None:
    return _by_text(facts, _PEERS, "lost") if facts.nodes > 1 else None


def _missing(facts: Facts) -> Cause | None:
    last = next((line for line in reversed(facts.stderr.splitlines()) if line.strip()), "")
    error = str(_error(facts).get("message", ""))
    if _MISSING.search(last) or error.startswith("FileNotFoundError:"):
        return Cause("failed", "input", spelled(root_code(facts)))
    return None


def _bug(facts: Facts) -> Cause | None:
    message = _error(facts).get("message")
    return Cause("failed", "bug", spelled(root_code(facts)) + (f": {message}" if message else ""))


# The order is the meaning: what was said or done comes before what the exit code shows, and that before the log.
ROWS: tuple[Callable[[Facts], Cause | None], ...] = (
    *(_result, _divergence, _stopped, _fault, _timeout, _not_started, _nobody_knows, _slurm, _exit_zero),
    *(_code, _nan_exit, _no_memory, _peers_gone, _missing, _bug),
)


def root_code(facts: Facts) -> int:
    """Return the exit code, or minus the signal, of the process that failed first.

    torchrun exits with 1 whatever a rank did. It hands the rank's code on in its error file or on stderr. A shell adds
    128 to the number of a signal.
    """
    code = _error(facts).get("errorCode")
    if not isinstance(code, int):
        log = facts.stderr[-_LOOK_CHARS:]
        if found := _SIGNALED.search(log):
            return -int(found[1])
        found = _ROOT_CAUSE.search(log)
        code = int(found[1]) if found else facts.exit.code or 0
    return 128 - code if 128 < code <= 128 + 64 else code


def spelled(code: int) -> str:
    """Return a code as text, e.g. `signal 9`."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _is_complete(facts: Facts) -> bool:
    """Return whether a command that exits with 0 has trained to its end. Who does not speak is believed."""
    if facts.exit.code != 0:
        return False
    return not facts.speaks or (facts.has_loss and (facts.last_step or 0) >= facts.steps - 1)


def _by_text(facts: Facts, pattern: re.Pattern[str], kind: Kind) -> Cause | None:
    found = pattern.search(str(_error(facts).get("message", ""))) or pattern.search(facts.stderr[-_LOOK_CHARS:])
    return Cause("failed", kind, f"{spelled(root_code(facts))}, and the log says {found[0]!r}") if found else None


def _error(facts: Facts) -> dict[str, Any]:
    """Return the message of torch's error file: `message`, perhaps `errorCode`. Nothing if there is none."""
    try:
        data = json.loads(facts.error_file)
    except (ValueError, RecursionError):
        return {}
    message = data.get("message") if isinstance(data, dict) else None
    return message if isinstance(message, dict) else {"message": message} if isinstance(message, str) else {}


def _left(facts: Facts) -> list[str]:
    left = ", ".join(map(str, facts.exit.left))
    return [f"processes that SIGKILL did not end: {left}"] if left else []


def _memory_note(facts: Facts) -> list[str]:
    kills = facts.exit.oom_kills
    return [f"meanwhile the system killed {kills} processes of this control group for lack of memory"] if kills else []
