"""Dispatcher: what happens between the search and the executor. It packs what is asked for, and stores what comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from hpxfer.driver.prepared import PreparedSweep
from hpxfer.plan.packing import pack, stack_flops
from hpxfer.progress.counts import RunCounts
from hpxfer.search import Outcome
from hpxfer.storage.lease import Lease
from hpxfer.store import Store
from hpxfer.store.losses import LOSS_COLUMNS
from hpxfer.train.checkpoints import Checkpoints
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

# Failures that the other trials of the sweep would meet too.
_STOPS = ("bug", "input")

OnEvent = Callable[[Stack, Event, RunCounts], None]


class TrainingFailed(RuntimeError):
    """A bug in training, or input that is missing on a worker: the run stopped at once. Says the worker's traceback."""

    def __init__(self, error: str, num_failed: int) -> None:
        super().__init__(error)
        self.num_failed = num_failed


class Dispatcher:
    """Gives an executor its stacks with `more`, takes its events with `take`."""

    def __init__(
        self,
        job: PreparedSweep,
        store: Store,
        lease: Lease,
        counts: RunCounts,
        *,
        checkpoints: Checkpoints | None,
        held: Callable[[], AbstractContextManager[None]],
        on_event: OnEvent | None,
    ) -> None:
        self._job, self._store, self._lease, self._counts = job, store, lease, counts
        self._checkpoints, self._held, self._on_event = checkpoints, held, on_event
        self._outcomes = dict(job.outcomes)
        self.done = set(job.outcomes)  # ids
        self._out: set[str] = set()  # in flight
        self._failed: set[str] = set()  # in this run: the next one tries them again
        self._gone: set[str] = set()  # what another folder had when it was opened, and can give no more
        self._decided: set[str] = set()  # lines of the search that were noted

    def more(self) -> list[Stack]:
        """Return the stacks of the trials that the search wants next, the costliest first.

        Trials that another folder has are copied from there and not trained.
        """
        trials = self._ask()
        while found := self._job.reuse.of([trial.id for trial in trials if trial.id not in self._gone]):
            with self._held():
                copied = self._job.reuse.copy(found, self._store)
            self._job.location.push(self._lease.check)
            self._gone.update(found.keys() - copied)
            self._know({key: found[key] for key in copied})
            trials = self._ask()
        self._out.update(trial.id for trial in trials)
        return longest_first(trials, self._job, self._checkpoints)

    def take(self, stack: Stack, event: Event) -> None:
        """Count an event; results are stored first. Raises TrainingFailed for a failure that more of would follow."""
        self._lease.check(look=False)
        if isinstance(event, Ended):
            self._store_results(stack, event.results)
        self._counts.add(stack, event)
        if self._on_event is not None:
            self._on_event(stack, event, self._counts)
        if isinstance(event, Ended):
            fatal = [result for result in event.results if result.error_kind in _STOPS]
            if fatal:
                raise TrainingFailed(fatal[0].error or "", len(fatal))

    @property
    def is_over(self) -> bool:
        """Whether nothing is in flight and the search wants nothing more."""
        return not self._out and not self._ask()

    def _ask(self) -> tuple[Trial, ...]:
        trials = tuple(self._job.search.ask(self._outcomes, self._out | self._failed, None))
        for line in self._job.search.why().splitlines():
            if line not in self._decided:
                self._decided.add(line)
                self._counts.note(line)
        return trials

    def _store_results(self, stack: Stack, results: tuple[TrialResult, ...]) -> None:
        trials = {trial.id: trial for trial in stack.trials}
        with self._held():
            self._store.append([(trials[one.trial_id], one) for one in results])
        self._job.location.push(self._lease.check)  # not held: a network that is down may be waited for a long time
        with self._held():
            column = LOSS_COLUMNS[self._job.spec.judge.loss]
            self._out.difference_update(trials)
            self._failed.update(one.trial_id for one in results if one.status == "failed")
            ended = [one for one in results if one.status != "failed"]
            self._know({one.trial_id: Outcome(one.status, getattr(one, column)) for one in ended})
            if self._checkpoints is not None:
                self._checkpoints.clear(self.done)

    def _know(self, outcomes: dict[str, Outcome]) -> None:
        self._outcomes.update(outcomes)
        self.done.update(outcomes)


def longest_first(trials: Iterable[Trial], job: PreparedSweep, checkpoints: Checkpoints | None = None) -> list[Stack]:
    """Return the stacks of trials, the costliest first: what is short fills the gaps at the end.

    Trials that share a checkpoint go on together.
    """
    resources = job.spec.resources
    going_on, rest = ([], trials) if checkpoints is None else checkpoints.going_on(trials)
    stacks = pack(
        rest,
        job.device,
        asked=job.spec.stack_size,
        measured=job.measured,
        workers=job.workers,
        share=resources.gpus_per_stack,
    )
    return sorted([*going_on, *stacks], key=stack_flops, reverse=True)
