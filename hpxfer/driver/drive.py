"""Run: train the missing trials of a sweep, under the lease of its results folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from hpxfer.driver.preflight import Cleared, preflight
from hpxfer.driver.prepared import PreparedSweep, prepare, refreshed, require_same
from hpxfer.driver.trial_list import known_trials, stacks_in_order
from hpxfer.errors import HpxferError
from hpxfer.executors import Executor, Placement, Stopping, make_executor
from hpxfer.host import Interrupts, Uri, interrupts, parse_root, remove_half_written
from hpxfer.loggers import LoggedTrial, Names, Place, streaming
from hpxfer.progress import RunCounts, writing
from hpxfer.registry import PluginFile
from hpxfer.results import Results, load_results
from hpxfer.search import Outcome, RoundSearch, judged_by
from hpxfer.search.export import StudyExport
from hpxfer.spec import SweepSpec
from hpxfer.storage import Lease, leased
from hpxfer.store import LOSS_COLUMNS, Store
from hpxfer.train.checkpoints import Checkpoints
from hpxfer.trial import Ended, Event, Stack, Started, Trial, TrialResult
from hpxfer.weights import kept

CHECKPOINTS = "checkpoints"
# Starts of the names of files that only the holder of the lease writes.
OWNED = ("trials", "curves", "sweep", "progress.json")
# Failures that the other trials of the sweep would meet too.
_FATAL_KINDS = ("bug", "input")

OnEvent = Callable[[Stack, Event, RunCounts], None]


class TrainingFailed(RuntimeError):
    """Training has a bug, or a worker lacks its input. The run stopped at once; the message is the traceback."""

    def __init__(self, error: str, num_failed: int) -> None:
        super().__init__(error)
        self.num_failed = num_failed


def run(
    sweep: SweepSpec | str | Path | PreparedSweep,
    *,
    results: str | Path | None = None,
    executor: Executor | None = None,
    address: str | None = None,
    reuse: Sequence[str | Path] = (),
    strict_memory: bool = True,
    strict_code: bool = False,
    on_event: OnEvent | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> Results:
    """Train the missing trials of a sweep and return all its results.

    `results` is the folder or URI that holds the sweep's own folder. `executor` replaces the one that the sweep's
    `resources` name. `address` joins a Ray cluster. `reuse` names other results folders; their trials are copied
    instead of trained. `strict_memory` refuses a sweep if even one trial of some shape does not fit into memory.
    `strict_code` refuses a user's own trainer whose commit or packages are not those of the last stored trial.
    `on_event` is called after the results of an event are stored. `on_wait` gets one line if the run has to watch an
    old lease.

    Raises HpxferError for bad input, a folder that cannot be written, a folder that another driver is writing, or a
    cluster that does not answer. Raises TrainingFailed if training has a bug; other failed trials are in the results.
    The run may be interrupted at any time: stored results stay, and the next run trains the rest. Trials that were
    running then leave a checkpoint, from which they go on; a note of the exception (`__notes__`) says so.

    >>> sweep = hpxfer.load_sweep("sweeps/smoke.yaml", overrides=["training.steps=10", "seeds=1"])
    >>> results = hpxfer.run(sweep, results=folder)  # nothing is trained again the next time
    >>> set(results.trials["status"])
    {'finished'}
    """
    if isinstance(sweep, PreparedSweep):
        prepared = sweep if address is None else replace(sweep, given=replace(sweep.given, address=address))
    else:
        prepared = prepare(sweep, results=results, address=address, reuse=reuse)
    cleared = preflight(prepared, strict_memory=strict_memory, strict_code=strict_code, in_process=executor is not None)
    return train(prepared, cleared, executor=executor, on_event=on_event, on_wait=on_wait)


def train(
    prepared: PreparedSweep,
    cleared: Cleared,
    *,
    executor: Executor | None = None,
    on_event: OnEvent | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> Results:
    """Train the missing trials of a sweep that its preflight has cleared, see `run`."""
    location = prepared.location
    # Beside results in object storage, so that every node can reach them.
    checkpoints = Checkpoints(parse_root(location.where) / CHECKPOINTS)
    weights = parse_root(location.where) / kept.FOLDER
    with interrupts() as signals:
        store = Store.open(location.folder, write=True)
        with leased(location.lease_storage, location.where, on_wait=on_wait) as lease:
            location.begin(lease.check)
            if not location.is_remote:
                store.guard = lease.check  # a mirror belongs to this process: there the push is guarded
            require_same(prepared.precision, prepared.folder)
            prepared = refreshed(prepared, store)
            with lease.writing():
                remove_half_written(prepared.folder, OWNED)
                kept.end(weights)
                checkpoints.end(prepared.outcomes)  # those of a driver that was killed at its very end
            store.save_sweep(prepared.spec, prepared.expansion.setting.data_digest)
            if prepared.missing or prepared.reuse.wanted:
                under_way = Run(prepared, cleared, store, lease, signals, checkpoints, weights, on_event)
                under_way.to_the_end(executor)
            store.compact()
            pa.default_memory_pool().release_unused()  # merging takes much memory, which Arrow would keep
            location.push(lease.check)
    return load_results(location.folder)


class Run:
    """A run under way. Its executor gets stacks through `more`, and its results are stored through `take`."""

    def __init__(
        self,
        prepared: PreparedSweep,
        cleared: Cleared,
        store: Store,
        lease: Lease,
        signals: Interrupts,
        checkpoints: Checkpoints,
        weights: Path | Uri,
        on_event: OnEvent | None,
    ) -> None:
        self._prepared, self._cleared, self._on_event = prepared, cleared, on_event
        self._store, self._lease, self._deferred = store, lease, signals.deferred
        self._checkpoints, self._weights = checkpoints, weights
        # Entered for every write to the folder. A mirror belongs to this process: its push is guarded.
        self._allowed: Callable[[], AbstractContextManager[None]] = (
            nullcontext if prepared.location.is_remote else lease.writing
        )
        resources = prepared.spec.resources
        self._keeps = bool(resources.checkpoint_s) and not prepared.trainer.writes_checkpoints
        with lease.writing():
            begun = checkpoints.start(resources.checkpoint_s) if self._keeps else None
            keep = kept.start(weights) if resources.keep == "last" else None
        self._how = prepared.trainer.training(
            prepared.lasting_folder,
            checkpoints=begun,
            keep=keep,
            plugins=cleared.plugins,
            stopping=_stopping(prepared.spec),
        )
        self._export = StudyExport(prepared.folder, prepared.expansion, self._allowed)
        self._loss = LOSS_COLUMNS[prepared.spec.judge.loss]
        self._counts = _counts(prepared)
        self._outcomes = dict(prepared.outcomes)
        # Trial ids.
        self._done = set(prepared.outcomes)
        self._running: set[str] = set()
        self._begun: dict[str, Trial] = {}  # by id; of the running ones, those that a worker has
        self._failed: set[str] = set()  # in this run; the next run tries them again
        self._not_copied: set[str] = set()  # another folder had them when it was opened, and has them no more
        self._bugs: frozenset[str] = frozenset()  # first lines of the errors of a trainer that a bug does not end
        self._noted: set[str] = set()  # decisions of the search that are among the counts' notes

    def to_the_end(self, executor: Executor | None) -> None:
        """Train what the search asks for, until it asks for no more."""
        logs = self._logging() if self._cleared.loggers else nullcontext()
        try:
            with logs as self._log, writing(self._prepared.folder, self._counts, allowed=self._allowed):
                runs = executor or make_executor(placement_of(self._prepared, self._cleared.plugins))
                runs.run(self.more, self._how, self.take)
                if self._running or self._ask():
                    status = self._counts.run_status()
                    done = f"{status.ended} of {status.num_left} trials"
                    raise HpxferError(f"the executor ended with {done}; run again to train the rest")
        except (KeyboardInterrupt, TrainingFailed) as end:
            if text := self._kept():
                end.add_note(text)
            raise
        finally:
            with suppress(HpxferError), self._lease.writing():
                self._checkpoints.end(self._done)
                kept.end(self._weights)

    def more(self) -> list[Stack]:
        """Return the stacks of the trials that the search wants next, in order.

        Trials that another folder has are copied from there and not trained.
        """
        trials, reuse = self._ask(), self._prepared.reuse
        while found := reuse.of([trial.id for trial in trials if trial.id not in self._not_copied]):
            with self._deferred():
                copied = reuse.copy(found, self._store)
            self._prepared.location.push(self._lease.check)
            self._not_copied.update(found.keys() - copied)
            self._learn({trial_id: found[trial_id] for trial_id in copied})
            trials = self._ask()
        self._running.update(trial.id for trial in trials)
        return stacks_in_order(trials, self._prepared, self._checkpoints if self._keeps else None)

    def take(self, stack: Stack, event: Event) -> None:
        """Store the results that an event brings, count the event, and tell it.

        Raises TrainingFailed for a failure that other trials would meet too.
        """
        self._lease.check(read=False)
        trials = {trial.id: trial for trial in stack.trials}
        results = event.results if isinstance(event, Ended) else ()
        if isinstance(event, Started):
            self._begun |= trials
        if isinstance(event, Ended):
            self._store_results(trials, results)
            self._begun = {trial_id: trial for trial_id, trial in self._begun.items() if trial_id not in trials}
        self._counts.add(stack, event)
        if self._log is not None:
            self._log(stack, event)
        if self._on_event is not None:
            self._on_event(stack, event, self._counts)
        if fatal := [result for result in results if self._is_fatal(result)]:
            raise TrainingFailed(fatal[0].error or "", len(fatal))

    def _is_fatal(self, result: TrialResult) -> bool:
        """Return whether the other trials would fail like this one.

        A bug of a trainer that goes on from its own checkpoints may be one of a single shape or seed. So it counts if
        nothing has gone well before, or if it is seen twice.
        """
        if result.error_kind not in _FATAL_KINDS:
            return False
        if self._how.reached is None or result.error_kind == "input" or not self._done:
            return True
        what = (result.error or "").partition("\n")[0]
        seen, self._bugs = what in self._bugs, self._bugs | {what}
        return seen

    def _ask(self) -> tuple[Trial, ...]:
        """Return the trials that the search wants next, and note its new decisions."""
        search = self._prepared.search
        trials = tuple(search.ask(self._outcomes, self._running | self._failed))
        self._export.write(search)
        for decision in (*search.why().splitlines(), *filter(None, [self._export.problem])):
            if decision not in self._noted:
                self._noted.add(decision)
                self._counts.note(decision)
        return trials

    def _store_results(self, trials: Mapping[str, Trial], results: Sequence[TrialResult]) -> None:
        ended = [result for result in results if result.status != "failed"]
        for result in ended:
            self._require_as_stored(result)
        has_curves = self._prepared.spec.resources.curves == "all"
        with self._deferred():
            self._store.append(
                [(trials[each.trial_id], each if has_curves else replace(each, curves=())) for each in results]
            )
        # Signals are not deferred here: the push may wait long for a network that is down.
        self._prepared.location.push(self._lease.check)
        with self._deferred():
            self._running.difference_update(trials)
            self._failed.update(result.trial_id for result in results if result.status == "failed")
            self._learn({each.trial_id: self._outcome(each) for each in ended})
            if self._keeps:
                with suppress(HpxferError), self._lease.writing():
                    self._checkpoints.clear(self._done)

    def _outcome(self, result: TrialResult) -> Outcome:
        return Outcome.of(result.status, getattr(result, self._loss), result.wall_s, result.stack_size)

    def _require_as_stored(self, result: TrialResult) -> None:
        """Raise HpxferError if a trial lost its curves and comes out otherwise: nothing stored is replaced so."""
        before, loss = self._prepared.lost.get(result.trial_id), getattr(result, self._loss)
        if before and (before.status, before.loss) != (result.status, loss):
            raise HpxferError(
                f"trial {result.trial_id}: trained again, as its curves are lost, it must come out as stored, "
                f"{before.status} with {self._loss} {before.loss!r}, got {result.status} with {loss!r}; nothing was "
                "overwritten. Train it where it was trained, or set resources.curves: none to go on without these "
                "curves, or remove the trials files that have no whole curves file beside them, to train anew"
            )

    def _learn(self, outcomes: Mapping[str, Outcome]) -> None:
        self._outcomes.update(outcomes)
        self._done.update(outcomes)

    def _kept(self) -> str | None:
        """Return what the checkpoints keep of the trials that have not ended, in words. None if no trial was begun."""
        if (reached := self._how.reached) is not None:
            last = {trial_id: reached(Stack(trials=(trial,))) for trial_id, trial in self._begun.items()}
            return kept_text(self._begun.values(), {key: step + 1 for key, step in last.items() if step >= 0})
        usable = self._checkpoints.usable() if self._keeps else []  # the furthest first
        steps = {trial_id: found.step for found in reversed(usable) for trial_id in found.trials}
        return kept_text(self._begun.values(), steps)

    @contextmanager
    def _logging(self) -> Iterator[Callable[[Stack, Event], None]]:
        """Yield the function that shows the events of a run to loggers.

        Loggers keep their files in the results folder, or where that would be on this disk.
        """
        prepared, names, rounds = self._prepared, Names(self._prepared.expansion), dict[str, int]()
        location, search = prepared.location, prepared.search
        where = location.where if location.is_remote else str(prepared.folder.absolute())
        place = Place(sweep=prepared.spec.name, results=where, folder=prepared.lasting_folder, writing=self._allowed)

        def describe(trial: Trial) -> LoggedTrial:
            if trial.id not in rounds and isinstance(search, RoundSearch):
                rounds.update(search.open_rounds())
            return names.describe(trial, rounds.get(trial.id))

        with streaming(self._cleared.loggers, place, describe) as take:
            yield take


def placement_of(prepared: PreparedSweep, plugins: tuple[PluginFile, ...]) -> Placement:
    """Return where and how wide the missing trials of a sweep are trained."""
    return Placement(
        resources=prepared.spec.resources,
        workers=prepared.real.workers,
        address=prepared.given.address,
        stopping=_stopping(prepared.spec),
        plugins=plugins,
        measured=prepared.measured,
    )


def _stopping(spec: SweepSpec) -> Stopping | None:
    asha = spec.early_stopping.asha
    varied = spec.search_row.hps(spec)
    return None if asha is None else Stopping(asha.grace_steps, asha.reduction_factor, varied)


def _counts(prepared: PreparedSweep) -> RunCounts:
    """Return the counts of a run that begins, with the best losses of the stored trials."""
    loss = LOSS_COLUMNS[prepared.spec.judge.loss]
    counts = RunCounts(
        prepared.real,
        hps=tuple(prepared.spec.grid),
        loss=lambda result: getattr(result, loss),
        judged=judged_by(prepared.spec),
    )
    for trial in known_trials(prepared):
        if (outcome := prepared.known.get(trial.id)) is not None and outcome.status == "finished":
            counts.stored(trial, outcome.loss)
    return counts


def kept_text(running: Collection[Trial], steps: Mapping[str, int]) -> str | None:
    """Return e.g. `4 trials stopped at step 12 to 40 of 300`. Return None if no trial was running.

    `steps` is trial id -> the steps that a checkpoint holds.
    """
    found: dict[int, list[int]] = {}  # steps of the whole training -> steps done, of each trial
    for trial in running:
        if trial.id in steps:
            found.setdefault(trial.setting.steps, []).append(steps[trial.id])

    def trials(number: int) -> str:
        return "1 trial" if number == 1 else f"{number} trials"

    parts = []
    for of, done in sorted(found.items()):
        span = str(min(done)) if len(set(done)) == 1 else f"{min(done)} to {max(done)}"
        parts.append(f"{trials(len(done))} stopped at step {span} of {of}")
    if lost := len(running) - sum(map(len, found.values())):
        parts.append(f"{trials(lost)} without a checkpoint start{'s' if lost == 1 else ''} over")
    return ", ".join(parts) or None
