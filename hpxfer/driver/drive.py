"""Run: train what is missing of a sweep, under the lease of its results folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from hpxfer.data import require_data
from hpxfer.driver.dispatch import Dispatcher, OnEvent
from hpxfer.driver.prepared import PreparedSweep, located, prepare, refreshed
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import Executor
from hpxfer.executors.kinds import Placement, make_executor
from hpxfer.executors.stopping import Stopping
from hpxfer.executors.worker import TrainStack
from hpxfer.host.files import remove_half_written
from hpxfer.host.interrupts import Interrupts, interrupts
from hpxfer.progress.counts import RunCounts, run_counts
from hpxfer.progress.file import writing
from hpxfer.rekey import refuse_legacy_ids
from hpxfer.results import Results, load_results
from hpxfer.search.cells import searched_cells
from hpxfer.spec import SweepSpec
from hpxfer.storage.lease import Lease, leased
from hpxfer.storage.uri import parse_root
from hpxfer.store import Store
from hpxfer.store.losses import LOSS_COLUMNS
from hpxfer.train.checkpoints import Checkpoints
from hpxfer.trial import Trial
from hpxfer.trial.events import Event
from hpxfer.trial.stack import Stack

CHECKPOINTS = "checkpoints"


def run(
    sweep: SweepSpec | str | Path | PreparedSweep,
    *,
    results: str | Path | None = None,
    executor: Executor | None = None,
    address: str | None = None,
    reuse: Sequence[str | Path] = (),
    on_event: OnEvent | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> Results:
    """Train what is missing of a sweep and return all its results.

    `results` is the folder or URI above the sweep's own. `executor` overrides the sweep's `resources`; `address` joins
    a Ray cluster; `reuse` are other results folders, whose trials are copied instead of trained. `on_event` is called
    after every event has been stored, `on_wait` with a line where an old lease has to be watched. Raises HpxferError
    for bad input, an unwritable folder, another driver at work there or a cluster that does not answer, and
    TrainingFailed where training has a bug; other failed trials are in the results. Interrupt it at any time: what has
    been stored stays, and the next run goes on from there.
    """
    job = sweep if isinstance(sweep, PreparedSweep) else prepare(sweep, results=results, address=address, reuse=reuse)
    if job.missing and address is None:
        with located(job.file):
            require_data(job.spec.data)  # a digest stands in for planning, and on a cluster for the nodes' own data
    location = job.location
    refuse_legacy_ids(location)
    with interrupts() as signals:
        store = Store.open(location.folder, write=True)
        with leased(location.lease_storage, location.where, on_wait=on_wait) as lease:
            location.begin()
            if not location.is_remote:
                store.guard = lease.check  # a mirror is this process's own: there the push is guarded
            job = refreshed(job, store)
            remove_half_written(job.folder)
            _checkpoints(job).end(job.outcomes)  # of a driver that was killed at its very end
            store.save_sweep(job.spec, job.expansion.setting.data_digest)
            if job.missing or job.reuse.wanted:
                how = executor or make_executor(placement_of(job, address))
                with _logging(job, address) as log:
                    _train(job, store, lease, signals, how, _then(on_event, log))
            store.compact()
            pa.default_memory_pool().release_unused()  # merging took much, and what it took is kept otherwise
            location.push(lease.check)
    return load_results(location.folder)


def placement_of(job: PreparedSweep, address: str | None) -> Placement:
    """Return where and how wide the missing trials of a sweep are trained."""
    asha = job.spec.early_stopping.asha
    return Placement(
        resources=job.spec.resources,
        workers=job.workers,
        address=address,
        stopping=None if asha is None else Stopping(asha.grace_steps, asha.reduction_factor),
        measured=job.measured,
    )


def _train(
    job: PreparedSweep, store: Store, lease: Lease, signals: Interrupts, executor: Executor, on_event: OnEvent | None
) -> None:
    resources, counts = job.spec.resources, _counts(job, store)
    checkpoints = _checkpoints(job)
    spec = checkpoints.start(resources.checkpoint_s) if resources.checkpoint_s else None
    asha = job.spec.early_stopping.asha
    how = TrainStack(
        resources.device,
        determinism=job.spec.training.determinism,
        kernels=resources.kernels,
        checkpoints=spec,
        stopping=None if asha is None else Stopping(asha.grace_steps, asha.reduction_factor),
    )
    dispatcher = Dispatcher(
        job, store, lease, counts, checkpoints=checkpoints if spec else None, held=signals.held, on_event=on_event
    )
    try:
        with writing(job.folder, counts):
            executor.run(dispatcher.more, how, dispatcher.take)
            if not dispatcher.is_over:
                raise HpxferError(
                    f"the executor ended with {counts.ended} of {counts.num_left} trials; run again to go on"
                )
    finally:
        if lease.is_ours():
            checkpoints.end(dispatcher.done)


@contextmanager
def _logging(job: PreparedSweep, address: str | None) -> Iterator[Callable[[Stack, Event], None] | None]:
    """Return what shows events to the loggers that the sweep names; None if it names none."""
    names = job.spec.resources.loggers
    if not names:
        yield None
        return
    from hpxfer.executors.loggers import logging_to

    with logging_to(names, job.folder, sweep=job.spec.name, address=address) as log:
        yield log


def _then(on_event: OnEvent | None, log: Callable[[Stack, Event], None] | None) -> OnEvent | None:
    """Return what does both."""
    if log is None:
        return on_event

    def both(stack: Stack, event: Event, counts: RunCounts) -> None:
        log(stack, event)
        if on_event is not None:
            on_event(stack, event, counts)

    return both


def _checkpoints(job: PreparedSweep) -> Checkpoints:
    """Return the checkpoints beside the results: in storage, where every node reaches them, if those are there."""
    return Checkpoints(parse_root(job.location.where) / CHECKPOINTS)


def _counts(job: PreparedSweep, store: Store) -> RunCounts:
    """Return the counts of a run that begins, with the best that is known already."""
    loss = LOSS_COLUMNS[job.spec.judge.loss]
    counts = run_counts(job.real, hps=tuple(job.spec.grid), loss=lambda result: getattr(result, loss))
    for trial in _its_trials(job, store):
        if (outcome := job.known.get(trial.id)) is not None and outcome.status == "finished":
            counts.stored(trial, outcome.loss)
    return counts


def _its_trials(job: PreparedSweep, store: Store) -> Iterator[Trial]:
    """Yield the trials of the sweep: those of a grid, or the stored ones that a search has chosen."""
    if job.spec.search.kind == "grid":
        yield from job.expansion.trials()
    else:
        yield from (cell.trial for cell in searched_cells(job.expansion, store.read_trials().to_pandas()))
