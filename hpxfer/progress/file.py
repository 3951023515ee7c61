"""How far a run is: counted from the events of its stacks, and kept in progress.json for `hpxfer watch`.

The driver writes it every two seconds, if it still holds the lease; a reader sees a whole file or none. It is only for
display: nothing resumes from it, and a disk that refuses it stops no run. By its counter, readers tell a live driver
from a dead one.
"""

from __future__ import annotations

import json
import math
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import half_written, read_text
from hpxfer.host.machine import machine_id, process_is_gone, process_started
from hpxfer.plan.plan import Plan
from hpxfer.progress.status import RunningStack, RunStatus, ShapeProgress, Throughput, run_status_from_dict
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Trial
from hpxfer.trial.events import Event, Progress, Started
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack
from hpxfer.verdict.loss_grid import NATS, JudgedLoss

MOST_NOTES = 8
MOST_ERRORS = 8

Loss = Callable[[TrialResult], float | None]


@dataclass(kw_only=True)
class _Running:
    """A stack on a worker. `first` is its first report there, from which its throughput is measured."""

    stack: Stack
    host: str
    pid: int
    started: float
    alive: int
    step: int = 0
    done: float = 0.0  # steps of the whole stack; half of a stack that was cut in two does half a step
    loss: float | None = None
    first: tuple[float, int] | None = None

    def rest_s(self, now: float) -> float:
        """Return the seconds until the stack ends at its own throughput, or 0 if that is unknown."""
        if self.first is None or self.step <= self.first[1] or now <= self.first[0]:
            return 0.0
        return (self.stack.setting.steps - self.step) * (now - self.first[0]) / (self.step - self.first[1])


@dataclass(kw_only=True)
class RunCounts:
    """What a run has done. Made by `run_counts`. Call `add` with every event, and `run_status` to read the counts."""

    sweep: str
    reads: str = "tokens"  # what the models read
    at_most: bool = False
    hps: tuple[str, ...] = ("lr",)  # the HPs that name the best trial of a shape
    loss: Loss = lambda result: result.validation_loss_nats
    judged: JudgedLoss = NATS  # what that loss is
    clock: Callable[[], float] = time.monotonic
    notes: list[str] = field(default_factory=list)  # the last decisions of the search
    num_notes: int = 0
    _errors: list[str] = field(default_factory=list)  # one message per kind of failure, for the first few kinds
    _noted: set[str] = field(default_factory=set)
    _shapes: dict[Shape, ShapeProgress] = field(default_factory=dict)
    _trial_s: dict[Shape, float] = field(default_factory=dict)  # worker seconds that one trial is expected to take
    _running: dict[str, _Running] = field(default_factory=dict)
    _tokens: Throughput = field(default_factory=Throughput)
    _work: Throughput = field(default_factory=Throughput)  # in worker seconds, as the plan expects them
    _began: float = field(init=False)
    # The driver counts, while the threads of the display and of the progress file read.
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def add(self, stack: Stack, event: Event) -> None:
        """Count an event of a stack."""
        now = self.clock()
        with self._lock:
            if isinstance(event, Started):
                self._start(stack, event, now)
            elif isinstance(event, Progress):
                self._advance(stack, event, now)
            else:
                self._end(stack, event.results, now)

    def note(self, text: str) -> None:
        """Keep a decision of the search among the last few. A repeated decision is ignored."""
        with self._lock:
            if text and text not in self._noted:
                self._noted.add(text)
                self.num_notes += 1
                self.notes = [*self.notes, text][-MOST_NOTES:]

    def stored(self, trial: Trial, loss: float | None) -> None:
        """Note the loss of a trial that was done before this run."""
        with self._lock:
            self._note_loss(trial, loss)

    def run_status(self) -> RunStatus:
        """Return how far the run is now."""
        with self._lock:
            now, shapes = self.clock(), self._shapes.values()
            return RunStatus(
                sweep=self.sweep,
                reads=self.reads,
                at_most=self.at_most,
                elapsed_s=now - self._began,
                num_left=sum(max(row.num_trials - row.num_stored, row.ended) for row in shapes),
                finished=sum(row.finished for row in shapes),
                diverged=sum(row.diverged for row in shapes),
                stopped=sum(row.stopped for row in shapes),
                failed=sum(row.failed for row in shapes),
                tokens=int(self._tokens.total),
                tokens_per_s=self._tokens.rate(now),
                eta_s=self._eta_s(now),
                running=tuple(self._running_stack(running, now) for running in self._running.values()),
                shapes=tuple(self._shape_progress(shape) for shape in self._shapes),
                num_notes=self.num_notes,
                notes=tuple(self.notes),
                errors=tuple(self._errors),
            )

    def _of(self, shape: Shape) -> ShapeProgress:
        return self._shapes.setdefault(shape, ShapeProgress(label=shape.label()))

    def _note_loss(self, trial: Trial, loss: float | None) -> None:
        """Note a loss of a trial's shape. The lowest finite loss is the best."""
        row = self._of(trial.shape)
        if loss is not None and math.isfinite(loss) and (row.best_loss is None or loss < row.best_loss):
            self._shapes[trial.shape] = replace(
                row, best_loss=loss, best_text=self.judged.level(loss), best=_named(trial, self.hps)
            )

    def _start(self, stack: Stack, event: Started, now: float) -> _Running:
        running = _Running(stack=stack, host=event.host, pid=event.pid, started=now, alive=len(stack.trials))
        self._running[stack.id] = running
        return running

    def _advance(self, stack: Stack, event: Progress, now: float) -> None:
        steps, size = stack.setting.steps, len(stack.trials)
        new = event.tokens / (stack.setting.batch_tokens * size)
        self._tokens.add(now, event.tokens)
        self._work.add(now, new * self._step_s(stack))
        # The executor may not report where its stacks run.
        running = self._running.get(stack.id) or self._start(stack, Started(host="", pid=0), now)
        running.done += new
        running.step = min(steps, round(running.done) if event.step is None else event.step)
        if event.step is not None and len(event.losses) == size:
            # a stack that resumes from a checkpoint has done more steps than it reported
            running.done = max(running.done, event.step)
        running.done = min(running.done, steps)
        running.first = running.first or (now, running.step)
        if event.losses:
            finite = [loss for loss in event.losses if math.isfinite(loss)]
            running.alive, running.loss = len(finite), min(finite, default=None)

    def _end(self, stack: Stack, results: Iterable[TrialResult], now: float) -> None:
        running = self._running.pop(stack.id, None)
        self._work.add(now, self._step_s(stack) * (stack.setting.steps - (running.done if running else 0)))
        trials = {trial.id: trial for trial in stack.trials}
        for result in results:
            row = self._of(stack.shape)
            counted: dict[str, Any] = {result.status: getattr(row, result.status) + 1}
            self._shapes[stack.shape] = replace(row, **counted)
            if result.status == "finished" and result.trial_id in trials:
                self._note_loss(trials[result.trial_id], self.loss(result))
            if result.error is not None and result.error not in self._errors and len(self._errors) < MOST_ERRORS:
                self._errors.append(result.error)

    def _step_s(self, stack: Stack) -> float:
        """Return the worker seconds of one step of a stack."""
        return self._trial_s.get(stack.shape, 0.0) * len(stack.trials) / stack.setting.steps

    def _eta_s(self, now: float) -> float | None:
        """Return the seconds left: the remaining work at the present throughput, but at least that of the slowest
        stack.
        """
        rate = self._work.rate(now)
        if rate is None:
            return None
        left = sum(
            max(0, self._shapes[shape].num_trials - self._shapes[shape].num_stored - self._shapes[shape].ended)
            * seconds
            for shape, seconds in self._trial_s.items()
        )
        left -= sum(self._step_s(running.stack) * running.done for running in self._running.values())
        return max([max(0.0, left) / rate, *(running.rest_s(now) for running in self._running.values())])

    def _running_stack(self, running: _Running, now: float) -> RunningStack:
        return RunningStack(
            id=running.stack.id,
            label=self._of(running.stack.shape).label,
            num_trials=len(running.stack.trials),
            host=running.host,
            pid=running.pid,
            step=running.step,
            steps=running.stack.setting.steps,
            running_s=now - running.started,
            alive=running.alive,
            loss_nats=running.loss,
        )

    def _shape_progress(self, shape: Shape) -> ShapeProgress:
        """Return the progress of a shape now. An adaptive search may train more trials than were planned."""
        row = self._shapes[shape]
        running = sum(len(it.stack.trials) for it in self._running.values() if it.stack.shape == shape)
        return replace(row, num_trials=max(row.num_trials, row.num_stored + row.ended), running=running)


def run_counts(
    plan: Plan,
    *,
    hps: tuple[str, ...] = ("lr",),
    loss: Loss = lambda result: result.validation_loss_nats,
    judged: JudgedLoss = NATS,
    clock: Callable[[], float] = time.monotonic,
) -> RunCounts:
    """Return the counts of a run that begins now. `hps` name the best trial of a shape; `loss` is the loss it is judged
    by, and `judged` says what that is.

    Add the losses of stored trials with `RunCounts.stored`.
    """
    return RunCounts(
        sweep=plan.sweep,
        reads=plan.reads,
        at_most=plan.at_most,
        hps=hps,
        loss=loss,
        judged=judged,
        clock=clock,
        _shapes={
            row.shape: ShapeProgress(label=plan.label(row.shape), num_trials=row.num_trials, num_stored=row.num_done)
            for row in plan.shapes
        },
        _trial_s=_expected(plan),
    )


def _expected(plan: Plan) -> dict[Shape, float]:
    """Return shape -> the worker seconds of a trial. Where nothing says it, a trial counts as much as a known one."""
    known = [row.trial_s for row in plan.shapes if not math.isnan(row.trial_s)]
    other = statistics.median(known) if known else 1.0
    return {row.shape: other if math.isnan(row.trial_s) else row.trial_s for row in plan.shapes}


def _named(trial: Trial, hps: Iterable[str]) -> str:
    """Return how a trial differs from others of its shape, e.g. `lr 2^-6 completep-moe`."""
    values = ", ".join(f"{name} {_value(trial.hps, name)}" for name in hps)
    return values + (f" {trial.parameterization.label()}" if trial.parameterization else "")


def _value(hps: HPs, name: str) -> str:
    value = hps.get(name)
    exponent = math.log2(value) if value > 0 else math.nan
    return f"2^{exponent:.3g}" if abs(exponent - round(exponent, 2)) < 1e-9 else f"{value:.4g}"


FILE = "progress.json"
EVERY_S = 2.0

# ended: the run came to its end; stopped: it was interrupted, or met an error.
State = Literal["running", "ended", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Written:
    """The content of progress.json. `counter` grows with every write of a driver, `run` tells drivers apart."""

    state: State
    run: str
    counter: int
    host: str
    pid: int
    machine: str | None  # tells hosts, boots and containers apart; None if unknown
    started: str | None  # tells the process from a later one with the same id
    run_status: RunStatus

    @property
    def is_gone(self) -> bool:
        """Whether the driver is known to have ended: it ran on this host, and its process is gone."""
        return self.machine is not None and self.machine == machine_id() and process_is_gone(self.pid, self.started)


@contextmanager
def writing(
    folder: Path,
    counts: RunCounts,
    every_s: float = EVERY_S,
    *,
    allowed: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[None]:
    """Keep `folder`/progress.json up to date as long as the context is open, and write at its end how the run ended.

    A thread writes, so that the counter moves while no stack reports. `allowed` is entered for every write. It raises
    HpxferError where this process may not write now; then the file stays as it is.
    """
    run, counter, done = os.urandom(8).hex(), 0, threading.Event()

    def put(state: State) -> None:
        nonlocal counter
        counter += 1
        # A full disk is reported by the store, which cannot go on without it. This file can.
        with suppress(OSError, HpxferError), allowed():
            write(folder, state=state, run=run, counter=counter, run_status=counts.run_status())

    def write_regularly() -> None:
        while not done.wait(every_s):
            put("running")

    put("running")
    thread = threading.Thread(target=write_regularly, name="hpxfer-progress", daemon=True)
    thread.start()
    state: State = "stopped"
    try:
        yield
        state = "ended"
    finally:
        done.set()
        thread.join()
        put(state)


def write(folder: Path, *, state: State, run: str, counter: int, run_status: RunStatus) -> None:
    """Replace progress.json. Raise OSError if the disk refuses."""
    pid = os.getpid()
    process = {"host": socket.gethostname(), "pid": pid, "machine": machine_id(), "started": process_started(pid)}
    data = {"state": state, "run": run, "counter": counter, **process}
    path = folder / FILE
    temporary = half_written(path)
    try:
        temporary.write_text(json.dumps({**data, "progress": run_status.to_dict()}, allow_nan=False), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(folder: Path) -> Written | None:
    """Return the content of progress.json, or None if there is none. Raise HpxferError if it cannot be understood."""
    path = folder / FILE
    try:
        data = json.loads(read_text(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {error.strerror}; name a results folder") from None
    except (ValueError, RecursionError):
        raise HpxferError(
            f"{path}: must be JSON, got something else; remove it, and the next run writes a new one"
        ) from None
    try:
        run_status = run_status_from_dict(data["progress"], str(path))
        state, counter, pid = data["state"], int(data["counter"]), int(data["pid"])
        if state not in get_args(State):
            raise ValueError(f"state {shown(state)}")
        if not 0 < pid < 2**31:
            raise ValueError(f"pid {shown(pid)}")
        return Written(
            state=state,
            run=str(data["run"]),
            counter=counter,
            host=str(data["host"]),
            pid=pid,
            machine=data["machine"],
            started=data["started"],
            run_status=run_status,
        )
    except HpxferError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise HpxferError(
            f"{path}: must hold the progress of a run, got {error}; remove it, and the next run writes a new one"
        ) from None
