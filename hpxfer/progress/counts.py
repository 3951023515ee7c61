"""RunCounts: how much a run has done, counted from the events of its stacks. Its size does not grow with the trials."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hpxfer.plan.plan import Plan
from hpxfer.progress.status import RunningStack, RunStatus, ShapeProgress
from hpxfer.progress.throughput import Throughput
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Trial
from hpxfer.trial.events import Event, Progress, Started
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

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
class _Shape:
    """The trials of one shape."""

    label: str
    num_trials: int = 0
    num_stored: int = 0
    trial_s: float = 0.0  # worker seconds that one trial is expected to take
    finished: int = 0
    diverged: int = 0
    stopped: int = 0
    failed: int = 0
    best_loss: float | None = None
    best: str = ""

    @property
    def ended(self) -> int:
        return self.finished + self.diverged + self.stopped + self.failed

    def saw(self, loss: float | None, what: str) -> None:
        """Note a loss. The lowest finite loss is the best."""
        if loss is not None and math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            self.best_loss, self.best = loss, what


@dataclass(kw_only=True)
class RunCounts:
    """What a run has done. Made by `run_counts`. Call `add` with every event, and `run_status` to look."""

    sweep: str
    at_most: bool = False
    hps: tuple[str, ...] = ("lr",)  # the HPs that name the best trial of a shape
    loss: Loss = lambda result: result.validation_loss_nats
    clock: Callable[[], float] = time.monotonic
    finished: int = 0
    diverged: int = 0
    stopped: int = 0
    failed: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)  # one message per kind of failure, for the first few kinds
    notes: list[str] = field(default_factory=list)  # the last decisions of the search
    num_notes: int = 0
    _noted: set[str] = field(default_factory=set)
    _shapes: dict[Shape, _Shape] = field(default_factory=dict)
    _running: dict[str, _Running] = field(default_factory=dict)
    _tokens: Throughput = field(default_factory=Throughput)
    _work: Throughput = field(default_factory=Throughput)  # in worker seconds, as the plan expects them
    _began: float = field(init=False)
    # The driver counts, while the threads of the display and of the progress file read.
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def ended(self) -> int:
        return self.finished + self.diverged + self.stopped + self.failed

    @property
    def num_left(self) -> int:
        """The number of trials that this run set out to train; for an adaptive search, the most it may train."""
        return sum(max(one.num_trials - one.num_stored, one.ended) for one in self._shapes.values())

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
            self._of(trial.shape).saw(loss, _named(trial, self.hps))

    def run_status(self) -> RunStatus:
        """Return how far the run is now."""
        with self._lock:
            return self._run_status(self.clock())

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON-ready data."""
        return self.run_status().to_dict()

    def _run_status(self, now: float) -> RunStatus:
        return RunStatus(
            sweep=self.sweep,
            at_most=self.at_most,
            elapsed_s=now - self._began,
            num_left=self.num_left,
            finished=self.finished,
            diverged=self.diverged,
            stopped=self.stopped,
            failed=self.failed,
            tokens=self.tokens,
            tokens_per_s=self._tokens.rate(now),
            eta_s=self._eta_s(now),
            running=tuple(self._stack(key, one, now) for key, one in self._running.items()),
            shapes=tuple(self._shape(shape, one) for shape, one in self._shapes.items()),
            num_notes=self.num_notes,
            notes=tuple(self.notes),
            errors=tuple(self.errors),
        )

    def _of(self, shape: Shape) -> _Shape:
        return self._shapes.setdefault(shape, _Shape(label=shape.label()))

    def _start(self, stack: Stack, event: Started, now: float) -> None:
        self._running[stack.id] = _Running(
            stack=stack, host=event.host, pid=event.pid, started=now, alive=len(stack.trials)
        )

    def _advance(self, stack: Stack, event: Progress, now: float) -> None:
        steps, size = stack.setting.steps, len(stack.trials)
        new = event.tokens / (stack.setting.batch_tokens * size)
        self.tokens += event.tokens
        self._tokens.add(now, event.tokens)
        self._work.add(now, new * self._step_s(stack))
        one = self._running.get(stack.id)
        if one is None:
            # The executor does not report where its stacks run.
            one = _Running(stack=stack, host="", pid=0, started=now, alive=size)
            self._running[stack.id] = one
        one.done += new
        one.step = min(steps, round(one.done) if event.step is None else event.step)
        if event.step is not None and len(event.losses) == size:
            # a stack that resumes from a checkpoint has done more steps than it reported
            one.done = max(one.done, event.step)
        one.done = min(one.done, steps)
        one.first = one.first or (now, one.step)
        if event.losses:
            finite = [loss for loss in event.losses if math.isfinite(loss)]
            one.alive, one.loss = len(finite), min(finite, default=None)

    def _end(self, stack: Stack, results: Iterable[TrialResult], now: float) -> None:
        one = self._running.pop(stack.id, None)
        self._work.add(now, self._step_s(stack) * (stack.setting.steps - (one.done if one else 0)))
        trials = {trial.id: trial for trial in stack.trials}
        shape = self._of(stack.shape)
        for result in results:
            setattr(self, result.status, getattr(self, result.status) + 1)
            setattr(shape, result.status, getattr(shape, result.status) + 1)
            if result.status == "finished" and result.trial_id in trials:
                shape.saw(self.loss(result), _named(trials[result.trial_id], self.hps))
            if result.error is not None and result.error not in self.errors and len(self.errors) < MOST_ERRORS:
                self.errors.append(result.error)

    def _step_s(self, stack: Stack) -> float:
        """Return the worker seconds of one step of a stack."""
        return self._of(stack.shape).trial_s * len(stack.trials) / stack.setting.steps

    def _eta_s(self, now: float) -> float | None:
        """Return the seconds left: the remaining work at the present throughput, but at least that of the slowest
        stack.
        """
        rate = self._work.rate(now)
        if rate is None:
            return None
        left = sum(max(0, one.num_trials - one.num_stored - one.ended) * one.trial_s for one in self._shapes.values())
        left -= sum(self._step_s(one.stack) * one.done for one in self._running.values())
        return max([max(0.0, left) / rate, *(one.rest_s(now) for one in self._running.values())])

    def _stack(self, key: str, one: _Running, now: float) -> RunningStack:
        return RunningStack(
            id=key,
            label=self._of(one.stack.shape).label,
            num_trials=len(one.stack.trials),
            host=one.host,
            pid=one.pid,
            step=one.step,
            steps=one.stack.setting.steps,
            running_s=now - one.started,
            alive=one.alive,
            loss_nats=one.loss,
        )

    def _shape(self, shape: Shape, one: _Shape) -> ShapeProgress:
        return ShapeProgress(
            label=one.label,
            num_trials=max(one.num_trials, one.num_stored + one.ended),
            num_stored=one.num_stored,
            finished=one.finished,
            diverged=one.diverged,
            stopped=one.stopped,
            failed=one.failed,
            running=sum(len(it.stack.trials) for it in self._running.values() if it.stack.shape == shape),
            best_loss_nats=one.best_loss,
            best=one.best,
        )


def run_counts(
    plan: Plan,
    *,
    hps: tuple[str, ...] = ("lr",),
    loss: Loss = lambda result: result.validation_loss_nats,
    clock: Callable[[], float] = time.monotonic,
) -> RunCounts:
    """Return the counts of a run that begins now. `hps` name the best trial of a shape; `loss` is the loss it is judged
    by.

    Add the losses of stored trials with `RunCounts.stored`.
    """
    counts = RunCounts(sweep=plan.sweep, at_most=plan.at_most, hps=hps, loss=loss, clock=clock)
    for one in plan.shapes:
        counts._shapes[one.shape] = _Shape(
            label=plan.label(one.shape),
            num_trials=one.num_trials,
            num_stored=one.num_done,
            trial_s=one.trial_s,
        )
    return counts


def _named(trial: Trial, hps: Iterable[str]) -> str:
    """Return how a trial differs from others of its shape, e.g. `lr 2^-6 completep-moe`."""
    values = ", ".join(f"{name} {_value(trial.hps, name)}" for name in hps)
    return values + (f" {trial.parameterization.label()}" if trial.parameterization else "")


def _value(hps: HPs, name: str) -> str:
    value = hps.get(name)
    exponent = math.log2(value) if value > 0 else math.nan
    return f"2^{exponent:.3g}" if abs(exponent - round(exponent, 2)) < 1e-9 else f"{value:.4g}"
