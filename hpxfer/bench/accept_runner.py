"""The runner of an acceptance: items one after the other, each in a process of its own.

A line of an item's stdout that holds a JSON object is a measured number. It is kept before the item's next line is
read. At its time limit an item is killed with all processes of its group, so an item that hangs, crashes or lacks
memory costs itself alone. This module knows nothing of GPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

State = Literal["passed", "failed", "skipped"]

_POLL_S = 0.05
_MOST_LINE_BYTES = 2**20
_TAIL = 800
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Item:
    """A test or a measurement. `command` prints one JSON object per measured number and ends with 0."""

    name: str
    command: tuple[str, ...]
    usual_s: float  # it does not begin if less is left of the budget
    limit_s: float  # it is killed after this time
    needs: tuple[str, ...] = ()  # items that must have passed before it
    missing: str | None = None  # why it cannot run on this machine


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How an item ended. `reason` says why it did not pass."""

    name: str
    state: State
    seconds: float = 0.0
    reason: str = ""


def run_items(
    items: Sequence[Item],
    *,
    budget_s: float,
    before: Mapping[str, State],
    keep: Callable[[dict[str, Any]], None],
    environment: Mapping[str, str],
    untested: bool = False,
) -> Iterator[Ended]:
    """Run the items in order and yield how each ended.

    `before` says how items ended in earlier runs. What passed is not repeated. An item whose need failed is skipped. So
    is an item whose need has never run, unless `untested` is true. `keep` stores one line.
    """
    began = time.monotonic()
    states = dict(before)
    for item in items:
        left = budget_s - (time.monotonic() - began)
        if states.get(item.name) == "passed":
            yield Ended(name=item.name, state="passed", reason="passed before")
            continue
        unmet = why_not(item, states, untested, left)
        if unmet is None:
            ended = _run(item, min(item.limit_s, left), keep, environment)
        else:
            ended = Ended(name=item.name, state="skipped", reason=unmet)
            keep({"item": item.name, "ok": False, "skipped": unmet})
        states[item.name] = ended.state
        yield ended


def why_not(item: Item, states: Mapping[str, State], untested: bool, left_s: float) -> str | None:
    """Return why an item does not run, or None."""
    if item.missing is not None:
        return item.missing
    for need in item.needs:
        match states.get(need):
            case "failed":
                return f"{need} failed"
            case "passed":
                pass
            case _ if not untested:
                return f"{need} has not passed; run it first, or give --untested"
    if left_s < item.usual_s:
        return f"it usually takes {item.usual_s:.0f} s, and {max(0.0, left_s):.0f} s of the budget are left"
    return None


def _run(item: Item, limit_s: float, keep: Callable[[dict[str, Any]], None], environment: Mapping[str, str]) -> Ended:
    """Run one item in a process group and a temporary folder of its own."""
    began = time.monotonic()
    taken = _Lines(item.name, keep)
    with tempfile.TemporaryDirectory(prefix=f"hpxfer-{item.name}-", ignore_cleanup_errors=True) as folder:
        errors = Path(folder, "stderr")
        with errors.open("wb") as stderr:
            child = subprocess.Popen(
                item.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**environment, "TMPDIR": folder},
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
            try:
                in_time = _read(child, began + limit_s, taken.take)
            finally:
                _kill(child)
        taken.end()
        tail = (taken.other + errors.read_bytes()[-_TAIL:]).decode(errors="replace")[-_TAIL:]
    seconds = time.monotonic() - began
    cut_short = not in_time and limit_s < item.limit_s
    reason = _reason(child.returncode, in_time, limit_s, taken, cut_short)
    line: dict[str, Any] = {"item": item.name, "ok": not reason, "rc": child.returncode, "s": round(seconds, 1)}
    if reason:
        line |= {"skipped" if cut_short else "reason": reason, "tail": tail}
    keep(line)
    state: State = "passed" if not reason else "skipped" if cut_short else "failed"
    return Ended(name=item.name, state=state, seconds=seconds, reason=reason)


def _reason(code: int, in_time: bool, limit_s: float, taken: _Lines, cut_short: bool) -> str:
    """Return why an item did not pass, or nothing."""
    if cut_short:
        return f"the budget ended it after {limit_s:.0f} s"
    if not in_time:
        return f"killed at its limit of {limit_s:g} s"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}" + (", maybe for lack of memory" if code == -9 else "")
        return f"killed by signal {-code}"
    if code:
        return taken.error or f"exit code {code}"
    if taken.infinite:
        return f"measured a number that is not finite: {', '.join(sorted(taken.infinite))}"
    return "" if taken.count else "it measured nothing"


class _Lines:
    """The lines that an item prints. Those that hold a JSON object are kept, and the end of the others."""

    def __init__(self, name: str, keep: Callable[[dict[str, Any]], None]) -> None:
        self.name, self.keep = name, keep
        self.began = time.monotonic()
        self.rest = self.other = b""
        self.count, self.error = 0, ""
        self.infinite: set[str] = set()

    def take(self, chunk: bytes) -> None:
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self.rest) > _MOST_LINE_BYTES:
            self.end()

    def end(self) -> None:
        """Take what was printed without an end of line."""
        line, self.rest = self.rest, b""
        if line:
            self._line(line)

    def _line(self, line: bytes) -> None:
        infinite: set[str] = set()

        def finite(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            infinite.update(key for key, value in pairs if _has_infinite(value))
            return {key: _without_infinite(value) for key, value in pairs}

        try:
            data = json.loads(line, object_pairs_hook=finite) if line.startswith(b"{") else None
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict) or "item" in data:
            self.other = (self.other + line[-_TAIL:] + b"\n")[-_TAIL:]
            return
        self.infinite |= infinite
        if "error" in data and "key" not in data:
            self.error = str(data["error"])
        else:
            self.count += 1
        self.keep({**data, "of": self.name, "s": round(time.monotonic() - self.began, 1)})


def _has_infinite(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_infinite, value))
    return isinstance(value, float) and (value != value or abs(value) == float("inf"))


def _without_infinite(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_infinite(part) for part in value]
    return None if _has_infinite(value) else value


def _read(child: subprocess.Popen[bytes], deadline: float, take: Callable[[bytes], None]) -> bool:
    """Take what the child prints until it ends. Return False if the deadline passed before.

    The end of the output says nothing: a child may close it and go on, and a process that it left may hold it open.
    """
    assert child.stdout is not None
    handle = child.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        while True:
            ended = child.poll() is not None
            left = deadline - time.monotonic()
            if selector.get_map() and selector.select(0 if ended else max(0.0, min(left, _POLL_S))):
                chunk = os.read(handle, 2**16)
                if chunk:
                    take(chunk)
                else:
                    selector.unregister(handle)
            elif ended:
                return True
            elif not selector.get_map():
                time.sleep(_POLL_S)
            if left <= 0:
                return ended


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the child, and what it left in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def _die_with(parent: int) -> Callable[[], None] | None:
    """Return what a child does first so that it is killed when its parent ends. None where the system cannot do it."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def die_with() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return die_with


def states_of(lines: Collection[Mapping[str, Any]]) -> dict[str, State]:
    """Return how each item ended, by its last line that is not of a skipped run. What passed once has passed."""
    found: dict[str, State] = {}
    for line in lines:
        name = line.get("item")
        if not isinstance(name, str) or "skipped" in line:
            continue
        if line.get("ok") is True:
            found[name] = "passed"
        elif found.get(name) != "passed":
            found[name] = "failed"
    return found
