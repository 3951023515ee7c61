"""Run: train the missing trials of a sweep, under the lease of its results folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from hpxfer.driver.dispatch import Dispatcher, OnEvent, TrainingFailed, allowed
from hpxfer.driver.preflight import Cleared, preflight
from hpxfer.driver.prepared import PreparedSweep, prepare, refreshed, require_same
from hpxfer.driver.trial_list import known_trials
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import Executor, Placement, Stopping, Trains
from hpxfer.executors.kinds import make_executor
from hpxfer.host.files import remove_half_written
from hpxfer.host.interrupts import Interrupts, interrupts
from hpxfer.loggers.feed import streaming
from hpxfer.loggers.kinds import LoggerKind
from hpxfer.loggers.logger import LoggedTrial, Place
from hpxfer.loggers.names import Names
from hpxfer.progress.counts import RunCounts, writing
from hpxfer.registry import PluginFile
from hpxfer.results import Results, load_results
from hpxfer.search.rounds import RoundSearch
from hpxfer.search.verdict_rules import judged_by
from hpxfer.spec import SweepSpec
from hpxfer.storage.lease import Lease, leased
from hpxfer.storage.uri import Uri, parse_root
from hpxfer.store import Store
from hpxfer.store.losses import LOSS_COLUMNS
from hpxfer.train.checkpoints import Checkpoints
from hpxfer.trial import Trial
from hpxfer.trial.events import Event
from hpxfer.trial.stack import Stack
from hpxfer.weights import kept

CHECKPOINTS = "checkpoints"
# Starts of the names of files that only the holder of the lease writes.
OWNED = ("trials", "curves", "sweep", "progress.json")


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
                kept.end(_weights(prepared))
                _checkpoints(prepared).end(prepared.outcomes)  # those of a driver that was killed at its very end
            store.save_sweep(prepared.spec, prepared.expansion.setting.data_digest)
            if prepared.missing or prepared.reuse.wanted:
                with _logging(prepared, cleared.loggers, lease) as log:
                    _train(prepared, cleared, store, lease, signals, executor, _then(on_event, log))
            store.compact()
            pa.default_memory_pool().release_unused()  # merging takes much memory, which Arrow would keep
            location.push(lease.check)
    return load_results(location.folder)


def placement_of(prepared: PreparedSweep, how: Trains, plugins: tuple[PluginFile, ...]) -> Placement:
    """Return where and how wide the missing trials of a sweep are trained."""
    return Placement(
        resources=prepared.spec.resources,
        node_gpus=how.node_gpus,
        reached=how.reached,
        stop_s=how.stop_s,
        workers=prepared.real.workers,
        address=prepared.given.address,
        stopping=_stopping(prepared.spec),
        plugins=plugins,
        measured=prepared.measured,
    )


def _train(
    prepared: PreparedSweep,
    cleared: Cleared,
    store: Store,
    lease: Lease,
    signals: Interrupts,
    executor: Executor | None,
    on_event: OnEvent | None,
) -> None:
    trainer, resources, counts = prepared.trainer, prepared.spec.resources, _counts(prepared)
    checkpoints, keeps = _checkpoints(prepared), bool(resources.checkpoint_s) and not trainer.writes_checkpoints
    with lease.writing():
        begun = checkpoints.start(resources.checkpoint_s) if keeps else None
        keep = kept.start(_weights(prepared)) if resources.keep == "last" else None
    how = trainer.training(
        prepared.lasting_folder,
        checkpoints=begun,
        keep=keep,
        plugins=cleared.plugins,
        stopping=_stopping(prepared.spec),
    )
    dispatcher = Dispatcher(
        prepared,
        store,
        lease,
        counts,
        checkpoints=checkpoints if keeps else None,
        reached=how.reached,
        deferred=signals.deferred,
        on_event=on_event,
    )
    try:
        with writing(prepared.folder, counts, allowed=allowed(prepared, lease)):
            runs = executor or make_executor(placement_of(prepared, how, cleared.plugins))
            runs.run(dispatcher.more, how, dispatcher.take)
            if not dispatcher.is_over:
                status = counts.run_status()
                raise HpxferError(
                    f"the executor ended with {status.ended} of {status.num_left} trials; run again to train the rest"
                )
    except (KeyboardInterrupt, TrainingFailed) as end:
        if text := dispatcher.kept():
            end.add_note(text)
        raise
    finally:
        with suppress(HpxferError), lease.writing():
            checkpoints.end(dispatcher.done)
            kept.end(_weights(prepared))


@contextmanager
def _logging(
    prepared: PreparedSweep, kinds: Sequence[LoggerKind], lease: Lease
) -> Iterator[Callable[[Stack, Event], None] | None]:
    """Yield the function that shows the events of a run to loggers, or None if there are none.

    Loggers keep their files in the results folder, or where that would be on this disk.
    """
    if not kinds:
        yield None
        return
    location, names = prepared.location, Names(prepared.expansion)
    where = location.where if location.is_remote else str(prepared.folder.absolute())
    place = Place(
        sweep=prepared.spec.name, results=where, folder=prepared.lasting_folder, writing=allowed(prepared, lease)
    )
    rounds: dict[str, int] = {}

    def describe(trial: Trial) -> LoggedTrial:
        if trial.id not in rounds and isinstance(prepared.search, RoundSearch):
            rounds.update(prepared.search.open_rounds())
        return names.describe(trial, rounds.get(trial.id))

    with streaming(kinds, place, describe) as take:
        yield take


def _then(on_event: OnEvent | None, log: Callable[[Stack, Event], None] | None) -> OnEvent | None:
    """Return a callback that calls both."""
    if log is None:
        return on_event

    def both(stack: Stack, event: Event, counts: RunCounts) -> None:
        log(stack, event)
        if on_event is not None:
            on_event(stack, event, counts)

    return both


def _stopping(spec: SweepSpec) -> Stopping | None:
    asha = spec.early_stopping.asha
    varied = spec.search_row.hps(spec)
    return None if asha is None else Stopping(asha.grace_steps, asha.reduction_factor, varied)


def _checkpoints(prepared: PreparedSweep) -> Checkpoints:
    """Return the checkpoints beside the results. Beside results in object storage, every node can reach them."""
    return Checkpoints(parse_root(prepared.location.where) / CHECKPOINTS)


def _weights(prepared: PreparedSweep) -> Path | Uri:
    """Return the folder of weights beside the results, see `_checkpoints`."""
    return parse_root(prepared.location.where) / kept.FOLDER


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
