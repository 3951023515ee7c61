"""Dispatcher: it stands between the search and the executor. It packs trials into stacks and stores their results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

from hpxfer.driver.prepared import PreparedSweep
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import Reached
from hpxfer.plan.packing import Packer, nearest_first
from hpxfer.progress.counts import RunCounts
from hpxfer.scaling.shape import Shape
from hpxfer.search import Outcome
from hpxfer.search.export import StudyExport
from hpxfer.search.stored import trial_seconds
from hpxfer.spec.axes import Axis
from hpxfer.storage.lease import Lease
from hpxfer.store import Store
from hpxfer.store.losses import LOSS_COLUMNS
from hpxfer.train.checkpoints import Checkpoints, FoundCheckpoint
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended, Event, Started
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

# Failures that the other trials of the sweep would meet too.
_FATAL_KINDS = ("bug", "input")

OnEvent = Callable[[Stack, Event, RunCounts], None]


class TrainingFailed(RuntimeError):
    """Training has a bug, or a worker lacks its input. The run stopped at once; the message is the traceback."""

    def __init__(self, error: str, num_failed: int) -> None:
        super().__init__(error)
        self.num_failed = num_failed


class Dispatcher:
    """Gives an executor its stacks through `more`, and takes its events through `take`."""

    def __init__(
        self,
        prepared: PreparedSweep,
        store: Store,
        lease: Lease,
        counts: RunCounts,
        *,
        checkpoints: Checkpoints | None,
        reached: Reached | None,  # of a user's own trainer, which writes checkpoints of its own
        deferred: Callable[[], AbstractContextManager[None]],
        on_event: OnEvent | None,
    ) -> None:
        self._prepared, self._store, self._lease, self._counts = prepared, store, lease, counts
        self._checkpoints, self._deferred, self._on_event = checkpoints, deferred, on_event
        self._reached = reached
        self._outcomes = dict(prepared.outcomes)
        # Trial ids.
        self.done = set(prepared.outcomes)
        self._running: set[str] = set()
        self._begun: dict[str, Trial] = {}  # by id; of the running ones, those that a worker has
        self._failed: set[str] = set()  # in this run; the next run tries them again
        self._not_copied: set[str] = set()  # another folder had them when it was opened, and has them no more
        self._export = StudyExport(prepared.folder, prepared.expansion, allowed(prepared, lease))
        self._bugs: frozenset[str] = frozenset()  # first lines of the errors of a user's own trainer
        self._noted: set[str] = set()  # decisions of the search that are among the counts' notes

    def more(self) -> list[Stack]:
        """Return the stacks of the trials that the search wants next, in order.

        Trials that another folder has are copied from there and not trained.
        """
        trials = self._ask()
        while found := self._prepared.reuse.of([trial.id for trial in trials if trial.id not in self._not_copied]):
            with self._deferred():
                copied = self._prepared.reuse.copy(found, self._store)
            self._prepared.location.push(self._lease.check)
            self._not_copied.update(found.keys() - copied)
            self._learn({trial_id: found[trial_id] for trial_id in copied})
            trials = self._ask()
        self._running.update(trial.id for trial in trials)
        return stacks_in_order(trials, self._prepared, self._checkpoints)

    def take(self, stack: Stack, event: Event) -> None:
        """Store the results that an event brings, then count the event.

        Raises TrainingFailed for a failure that other trials would meet too.
        """
        self._lease.check(read=False)
        trials = {trial.id: trial for trial in stack.trials}
        if isinstance(event, Started):
            self._begun |= trials
        if isinstance(event, Ended):
            self._store_results(trials, event.results)
            for trial_id in trials:
                self._begun.pop(trial_id, None)
        self._counts.add(stack, event)
        if self._on_event is not None:
            self._on_event(stack, event, self._counts)
        if isinstance(event, Ended):
            fatal = [result for result in event.results if self._is_fatal(result)]
            if fatal:
                raise TrainingFailed(fatal[0].error or "", len(fatal))

    def _is_fatal(self, result: TrialResult) -> bool:
        """Return whether the other trials would fail like this one.

        A bug of a user's own trainer may be one of a single shape or seed. So it counts if nothing has gone well
        before, or if it is seen twice.
        """
        if result.error_kind not in _FATAL_KINDS:
            return False
        if self._reached is None or result.error_kind == "input" or not self.done:
            return True
        what = (result.error or "").partition("\n")[0]
        seen, self._bugs = what in self._bugs, self._bugs | {what}
        return seen

    @property
    def is_over(self) -> bool:
        """Whether no stack is running and the search wants no more trials."""
        return not self._running and not self._ask()

    def kept(self) -> str | None:
        """Return what the checkpoints keep of the trials that have not ended, in words. None if no trial was begun."""
        steps = {} if self._checkpoints is None else steps_kept(self._checkpoints.usable())
        if self._reached is not None:
            last = {trial.id: self._reached(Stack(trials=(trial,))) for trial in self._begun.values()}
            steps = {trial_id: step + 1 for trial_id, step in last.items() if step >= 0}
        return kept_text(self._begun.values(), steps)

    def _ask(self) -> tuple[Trial, ...]:
        """Return the trials that the search wants next, and note its new decisions."""
        trials = tuple(self._prepared.search.ask(self._outcomes, self._running | self._failed))
        self._export.write(self._prepared.search)
        problem = [self._export.problem] if self._export.problem else []
        for decision in (*self._prepared.search.why().splitlines(), *problem):
            if decision not in self._noted:
                self._noted.add(decision)
                self._counts.note(decision)
        return trials

    def _store_results(self, trials: Mapping[str, Trial], results: tuple[TrialResult, ...]) -> None:
        self._check_again(results)
        with self._deferred():
            has_curves = self._prepared.spec.resources.curves == "all"
            stored = [result if has_curves else replace(result, curves=()) for result in results]
            self._store.append([(trials[result.trial_id], result) for result in stored])
        # Signals are not deferred here: the push may wait long for a network that is down.
        self._prepared.location.push(self._lease.check)
        with self._deferred():
            column = LOSS_COLUMNS[self._prepared.spec.judge.loss]
            self._running.difference_update(trials)
            self._failed.update(result.trial_id for result in results if result.status == "failed")
            ended = [result for result in results if result.status != "failed"]
            self._learn(
                {
                    result.trial_id: Outcome(
                        result.status, getattr(result, column), trial_seconds(result.wall_s, result.stack_size)
                    )
                    for result in ended
                }
            )
            if self._checkpoints is not None:
                with suppress(HpxferError), self._lease.writing():
                    self._checkpoints.clear(self.done)

    def _check_again(self, results: Iterable[TrialResult]) -> None:
        """Raise HpxferError for a trial that lost its curves and comes out otherwise: nothing stored is replaced so."""
        column = LOSS_COLUMNS[self._prepared.spec.judge.loss]
        for result in results:
            before, loss = self._prepared.lost.get(result.trial_id), getattr(result, column)
            if before and result.status != "failed" and (before.status, before.loss) != (result.status, loss):
                raise HpxferError(
                    f"trial {result.trial_id}: trained again, as its curves are lost, it must come out as stored, "
                    f"{before.status} with {column} {before.loss!r}, got {result.status} with {loss!r}; nothing was "
                    "overwritten. Train it where it was trained, or set resources.curves: none to go on without these "
                    "curves, or remove the trials files that have no whole curves file beside them, to train anew"
                )

    def _learn(self, outcomes: dict[str, Outcome]) -> None:
        self._outcomes.update(outcomes)
        self.done.update(outcomes)


def allowed(prepared: PreparedSweep, lease: Lease) -> Callable[[], AbstractContextManager[None]]:
    """Return what is entered for every write to the folder. A mirror belongs to this process: its push is guarded."""
    return nullcontext if prepared.location.is_remote else lease.writing


def stacks_in_order(
    trials: Iterable[Trial], prepared: PreparedSweep, checkpoints: Checkpoints | None = None
) -> list[Stack]:
    """Return the stacks of trials, those of the base first, then those of the shapes beside it, so that a verdict can
    form early.

    Trials that share a checkpoint stay in one stack and resume from it.
    """
    resumed, fresh = ([], trials) if checkpoints is None else checkpoints.resumable(trials)
    packer = Packer.of(prepared.spec, prepared.real.device, prepared.real.workers, prepared.measured)
    stacks = [*map(packer.with_way, resumed), *packer.pack(fresh)]
    distances = _distances(prepared.expansion.axes, prepared.spec.base_shape)
    return nearest_first(stacks, distances, prepared.real.workers)


def _distances(axes: Iterable[Axis], base: Shape) -> dict[Shape, int]:
    """Return shape -> how many points from the base it is, on the axis on which it is nearest."""
    out: dict[Shape, int] = {}
    for axis in axes:
        shapes = [point.shape for point in axis.points]
        at_base = shapes.index(base)
        for index, shape in enumerate(shapes):
            out[shape] = min(out.get(shape, len(shapes)), abs(index - at_base))
    return out


def steps_kept(checkpoints: Iterable[FoundCheckpoint]) -> dict[str, int]:
    """Return trial id -> the steps that usable checkpoints hold. The furthest checkpoint comes first."""
    steps: dict[str, int] = {}
    for found in checkpoints:
        for trial_id in found.trials:
            steps.setdefault(trial_id, found.step)
    return steps


def kept_text(running: Collection[Trial], steps: Mapping[str, int]) -> str | None:
    """Return e.g. `4 trials stopped at step 12 to 40 of 300`. Return None if no trial was running.

    `steps` is trial id -> the steps that a checkpoint holds.
    """
    kept: dict[int, list[int]] = {}  # steps of the whole training -> steps done, of each trial
    for trial in running:
        if trial.id in steps:
            kept.setdefault(trial.setting.steps, []).append(steps[trial.id])
    parts = [f"{_trials(len(done))} stopped at step {_span(done)} of {of}" for of, done in sorted(kept.items())]
    if lost := len(running) - sum(map(len, kept.values())):
        parts.append(f"{_trials(lost)} without a checkpoint start{'s' if lost == 1 else ''} over")
    return ", ".join(parts) or None


def _trials(number: int) -> str:
    return "1 trial" if number == 1 else f"{number} trials"


def _span(steps: Collection[int]) -> str:
    return str(min(steps)) if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)}"
