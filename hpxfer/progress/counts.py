"""The counts of a run, from the events of its stacks, and the thread that keeps progress.json up to date with them."""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.host import NATS, JudgedLoss
from hpxfer.plan import Plan
from hpxfer.progress.status import ENDS, RunningStack, RunStatus, ShapeProgress, State, write
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Event, Progress, Stack, Started, Trial, TrialResult

EVERY_S = 2.0
MOST_NOTES = 8
MOST_ERRORS = 8
# Above this number of marks, every second one is dropped: the memory does not grow with the run.
MOST_MARKS = 256
# A rate over less time than this would change much with every report.
LEAST_S = 2.0

Loss = Callable[[TrialResult], float | None]


@dataclass(kw_only=True)
class Throughput:
    """An amount that grows over time, and its rate over the later half: steady enough for an ETA, and it forgets a slow
    start.
    """

    total: float = 0.0
    _marks: list[tuple[float, float]] = field(default_factory=list)  # (seconds, total at that time)
    _spacing_s: float = 0.25

    def add(self, now: float, amount: float) -> None:
        """Add an amount that was done by `now`. The first call only starts the clock."""
        self.total += amount
        if not self._marks or now - self._marks[-1][0] >= self._spacing_s:
            self._marks.append((now, self.total))
            if len(self._marks) > MOST_MARKS:
                self._marks = self._marks[::2]
                self._spacing_s *= 2

    def rate(self, now: float) -> float | None:
        """Return the amount per second since the middle of the time so far, or None before LEAST_S have passed."""
        if not self._marks or now - self._marks[0][0] < LEAST_S:
            return None
        first = self._marks[0]
        since = next((mark for mark in reversed(self._marks) if mark[0] <= (first[0] + now) / 2), first)
        if self.total <= since[1]:
            since = first  # nothing was added since the middle: use the whole time
        return (self.total - since[1]) / (now - since[0]) if self.total > since[1] else None


@dataclass(kw_only=True)
class _Running:
    """A stack on a worker."""

    stack: Stack
    host: str
    pid: int
    started: float
    step: int = 0
    done: float = 0.0  # steps of the whole stack; half of a stack that was cut in two does half a step
    losses: tuple[float, ...] | None = None  # of its trials, where a report had them
    first: tuple[float, int] | None = None  # the first report here: its time and its step

    def shown(self, now: float, label: str) -> RunningStack:
        finite = [loss for loss in self.losses or () if math.isfinite(loss)]
        return RunningStack(
            id=self.stack.id,
            label=label,
            num_trials=len(self.stack.trials),
            host=self.host,
            pid=self.pid,
            step=self.step,
            steps=self.stack.setting.steps,
            running_s=now - self.started,
            alive=len(self.stack.trials) if self.losses is None else len(finite),
            loss_nats=min(finite, default=None),
        )

    def rest_s(self, now: float) -> float:
        """Return the seconds until the stack ends at its own throughput, or 0 if that is unknown."""
        if self.first is None or self.step <= self.first[1] or now <= self.first[0]:
            return 0.0
        return (self.stack.setting.steps - self.step) * (now - self.first[0]) / (self.step - self.first[1])


class RunCounts:
    """What a run has done since it was made. Call `add` with every event, and `run_status` to read the counts.

    `hps` name the best trial of a shape; `loss` is the loss it is judged by, and `judged` says what that is. The driver
    counts, while the threads of the display and of progress.json read.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        hps: tuple[str, ...] = ("lr",),
        loss: Loss = lambda result: result.validation_loss_nats,
        judged: JudgedLoss = NATS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan, self._hps, self._loss, self._judged, self._clock = plan, hps, loss, judged, clock
        self._began, self._lock = clock(), threading.RLock()
        self._notes = dict[str, None]()  # the decisions of the search
        self._errors = dict[str, None]()  # one message per kind of failure
        self._shapes = {
            row.shape: ShapeProgress(label=plan.label(row.shape), num_trials=row.num_trials, num_stored=row.num_done)
            for row in plan.shapes
        }
        known = [row.trial_s for row in plan.shapes if not math.isnan(row.trial_s)]
        other = statistics.median(known) if known else 1.0
        # The worker seconds of a trial. Where nothing says it, a trial counts as much as a known one.
        self._trial_s = {row.shape: other if math.isnan(row.trial_s) else row.trial_s for row in plan.shapes}
        self._running = dict[str, _Running]()
        self._tokens, self._work = Throughput(), Throughput()  # the work in worker seconds, as the plan expects them

    @property
    def num_notes(self) -> int:
        """Decisions of the search so far."""
        return len(self._notes)

    def add(self, stack: Stack, event: Event) -> None:
        """Count an event of a stack."""
        now = self._clock()
        with self._lock:
            if isinstance(event, Started):
                self._running[stack.id] = _Running(stack=stack, host=event.host, pid=event.pid, started=now)
            elif isinstance(event, Progress):
                self._advance(stack, event, now)
            else:
                self._end(stack, event.results, now)

    def note(self, text: str) -> None:
        """Keep a decision of the search. A repeated decision is ignored."""
        with self._lock:
            if text:
                self._notes.setdefault(text)

    def stored(self, trial: Trial, loss: float | None) -> None:
        """Note the loss of a trial. The lowest finite loss of a shape is its best."""
        with self._lock:
            row = self._row(trial.shape)
            if loss is not None and math.isfinite(loss) and (row.best_loss is None or loss < row.best_loss):
                best = ", ".join(f"{name} {_spelled(trial.hps.get(name))}" for name in self._hps)
                best += f" {trial.parameterization.label()}" if trial.parameterization else ""
                text = self._judged.level(loss)
                self._shapes[trial.shape] = replace(row, best_loss=loss, best_text=text, best=best)

    def run_status(self) -> RunStatus:
        """Return how far the run is now. An adaptive search may train more trials than were planned."""
        with self._lock:
            now, active = self._clock(), Counter[Shape]()
            for each in self._running.values():
                active[each.stack.shape] += len(each.stack.trials)
            shapes = tuple(
                replace(row, num_trials=max(row.num_trials, row.num_stored + row.ended), running=active[shape])
                for shape, row in self._shapes.items()
            )
            ended = {name: sum(getattr(row, name) for row in shapes) for name in ENDS}
            return RunStatus(
                sweep=self._plan.sweep,
                reads=self._plan.reads,
                at_most=self._plan.at_most,
                elapsed_s=now - self._began,
                num_left=sum(row.num_trials - row.num_stored for row in shapes),
                **ended,
                tokens=int(self._tokens.total),
                tokens_per_s=self._tokens.rate(now),
                eta_s=self._eta_s(now),
                running=tuple(each.shown(now, self._row(each.stack.shape).label) for each in self._running.values()),
                shapes=shapes,
                num_notes=len(self._notes),
                notes=tuple(self._notes)[-MOST_NOTES:],
                errors=tuple(self._errors)[:MOST_ERRORS],
            )

    def _row(self, shape: Shape) -> ShapeProgress:
        return self._shapes.setdefault(shape, ShapeProgress(label=shape.label()))

    def _advance(self, stack: Stack, event: Progress, now: float) -> None:
        steps, size = stack.setting.steps, len(stack.trials)
        new = event.tokens / (stack.setting.batch_tokens * size)
        self._tokens.add(now, event.tokens)
        self._work.add(now, new * self._step_s(stack))
        # The executor may not report where its stacks run.
        running = self._running.setdefault(stack.id, _Running(stack=stack, host="", pid=0, started=now))
        running.done += new
        running.step = min(steps, round(running.done) if event.step is None else event.step)
        if event.step is not None and len(event.losses) == size:
            # a stack that resumes from a checkpoint has done more steps than it reported
            running.done = max(running.done, event.step)
        running.done = min(running.done, steps)
        running.first = running.first or (now, running.step)
        running.losses = event.losses or running.losses

    def _end(self, stack: Stack, results: tuple[TrialResult, ...], now: float) -> None:
        running = self._running.pop(stack.id, None)
        self._work.add(now, self._step_s(stack) * (stack.setting.steps - (running.done if running else 0)))
        trials = {trial.id: trial for trial in stack.trials}
        for result in results:
            row = self._row(stack.shape)
            self._shapes[stack.shape] = replace(row, **{result.status: getattr(row, result.status) + 1})
            if result.status == "finished" and result.trial_id in trials:
                self.stored(trials[result.trial_id], self._loss(result))
            if result.error is not None:
                self._errors.setdefault(result.error)

    def _step_s(self, stack: Stack) -> float:
        """Return the worker seconds of one step of a stack."""
        return self._trial_s.get(stack.shape, 0.0) * len(stack.trials) / stack.setting.steps

    def _eta_s(self, now: float) -> float | None:
        """Return the seconds left: the remaining work at the present throughput, but at least that of the slowest
        stack.
        """
        if (rate := self._work.rate(now)) is None:
            return None
        rows = ((self._shapes[shape], seconds) for shape, seconds in self._trial_s.items())
        left = sum(max(0, row.num_trials - row.num_stored - row.ended) * seconds for row, seconds in rows)
        left -= sum(self._step_s(running.stack) * running.done for running in self._running.values())
        return max([max(0.0, left) / rate, *(running.rest_s(now) for running in self._running.values())])


def _spelled(value: float) -> str:
    exponent = math.log2(value) if value > 0 else math.nan
    return f"2^{exponent:.3g}" if abs(exponent - round(exponent, 2)) < 1e-9 else f"{value:.4g}"


@contextmanager
def writing(
    folder: Path,
    counts: RunCounts,
    every_s: float = EVERY_S,
    *,
    allowed: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[None]:
    """Keep `folder`/progress.json up to date as long as the context is open, and write at its end how the run ended.

    A thread writes, so that the counter moves while no stack reports: by it, readers tell a live driver from a dead
    one. `allowed` is entered for every write. It raises HpxferError where this process may not write now; then the file
    stays as it is.
    """
    run, counter, done = os.urandom(8).hex(), 0, threading.Event()

    def put(state: State) -> None:
        nonlocal counter
        counter += 1
        # A full disk is reported by the store, which cannot go on without it. This file can.
        with suppress(OSError, ValueError, HpxferError), allowed():
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
