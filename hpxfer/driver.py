"""The driver: from a sweep to a results folder. The only writer of the store; it runs what is missing and no more."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpxfer.data import check_length, data_ref, require_here
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import Executor
from hpxfer.executors.worker import TrainStack
from hpxfer.machine import gpu_bytes, has_cuda
from hpxfer.plan import Plan, make_plan, num_workers
from hpxfer.results import Results, load_results
from hpxfer.shape import Shape
from hpxfer.spec import SweepSpec, load_sweep
from hpxfer.spec.yaml_file import read_yaml
from hpxfer.stack import Device, Measured, Stack, pack
from hpxfer.store import SHAPE_COLUMNS, Store
from hpxfer.train.event import Event, Progress
from hpxfer.trial import TRAINER_VERSION, Expansion, Trial

RESULTS = "results"


@dataclass(kw_only=True)
class Tally:
    """What has happened so far, for the progress line."""

    num_left: int  # trials that this run set out to train
    tokens_left: int
    finished: int = 0
    diverged: int = 0
    failed: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)  # one of each kind of failure

    def add(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, Progress):
            self.tokens += event.tokens
            return
        for result in event:
            setattr(self, result.status, getattr(self, result.status) + 1)
            if result.error is not None and result.error not in self.errors:
                self.errors.append(result.error)

    @property
    def ended(self) -> int:
        return self.finished + self.diverged + self.failed


@dataclass(frozen=True, kw_only=True)
class Job:
    """A sweep made ready: its plan, and what its results folder has of it."""

    spec: SweepSpec
    file: Path | None  # where the sweep was read from
    expansion: Expansion
    folder: Path
    plan: Plan
    done: frozenset[str]  # trial ids
    device: Device
    measured: Mapping[Shape, Measured]  # what the folder's trials say of their shapes
    problems: tuple[str, ...]  # files of the store that were passed over

    @cached_property
    def missing(self) -> tuple[Trial, ...]:
        """The trials that are not done."""
        return tuple(trial for trial in self.expansion.trials() if trial.id not in self.done)


def prepare(sweep: SweepSpec | str | Path, *, results: str | Path = RESULTS, executor: str | None = None) -> Job:
    """Return the sweep made ready: data found and digested, store looked through. Writes nothing.

    `executor` overrides the sweep's: ray | local.
    """
    spec = sweep if isinstance(sweep, SweepSpec) else load_sweep(sweep)
    if executor is not None:
        if executor not in ("ray", "local"):
            raise HpxferError(f"--executor must be ray or local, got {executor!r}")
        spec = spec.model_copy(update={"resources": spec.resources.model_copy(update={"executor": executor})})
    with _located(None if isinstance(sweep, SweepSpec) else sweep):
        expansion = Expansion(spec, data_ref(spec.data))
        check_length(spec)
    folder = Path(results) / spec.name
    store = Store.open(folder, write=False)
    done = frozenset(store.done_ids())
    cuda = has_cuda(spec.resources.device)
    device = Device(cuda=cuda, memory_bytes=gpu_bytes() if cuda else None)
    known = measured(store, cuda=cuda) if done else {}
    return Job(
        spec=spec,
        file=None if isinstance(sweep, SweepSpec) else Path(sweep),
        expansion=expansion,
        folder=folder,
        plan=make_plan(expansion, done, device, measured=known, warnings=tuple(_warnings(spec, device, store))),
        done=done,
        device=device,
        measured=known,
        problems=tuple(store.problems),
    )


@contextmanager
def _located(file: str | Path | None) -> Iterator[None]:
    """Put file and line before an error that starts with its key path, e.g. `data.source: ...`."""
    try:
        yield
    except HpxferError as error:
        key, _, rest = str(error).partition(": ")
        if file is None or not key.startswith("data."):
            raise
        raise HpxferError(f"{read_yaml(file).where(tuple(key.split('.')))}: {rest}") from None


def measured(store: Store, *, cuda: bool) -> dict[Shape, Measured]:
    """Return shape, with batch and steps -> what stored trials of today's trainer on such a device say of it."""
    rows: dict[Shape, list[dict[str, Any]]] = {}
    names = [*SHAPE_COLUMNS, "wall_s", "peak_bytes", "stack_size", "halvings", "device", "trainer_version"]
    for row in store.read_trials().select(names).to_pylist():
        if row["stack_size"] and row["trainer_version"] == TRAINER_VERSION and (row["device"] != "cpu") is cuda:
            rows.setdefault(Shape(**{name: row[name] for name in SHAPE_COLUMNS}), []).append(row)
    return {shape: _measured(found, cuda) for shape, found in rows.items()}


def _measured(rows: list[dict[str, Any]], cuda: bool) -> Measured:
    seconds = [row["wall_s"] / row["stack_size"] for row in rows if row["wall_s"] is not None]
    # A process's peak on a CPU is that of all its stacks; a device's is reset for each.
    peaks = [row["peak_bytes"] / row["stack_size"] for row in rows if cuda and row["peak_bytes"]]
    return Measured(
        trial_s=statistics.median(seconds) if seconds else None,
        trial_bytes=max(peaks, default=None),
        most=max((row["stack_size"] for row in rows if row["halvings"]), default=None),
    )


def _warnings(spec: SweepSpec, device: Device, store: Store) -> Iterator[str]:
    """Yield what a user should know of the folder and of the device before a run."""
    if spec.training.determinism == "fast" and not device.cuda:
        yield "training.determinism: on a CPU, fast is the same code as strict: the same bits whatever the stack"
    version = store.trainer_version()
    if version is not None and version < TRAINER_VERSION:
        yield (
            f"{store.folder}: its trials were made by version {version} of the trainer, this hpxfer trains as version "
            f"{TRAINER_VERSION}: a run trains them all anew and keeps the old rows; give another folder with --results "
            f"to keep this one as it is"
        )


def run(
    sweep: SweepSpec | str | Path | Job,
    *,
    results: str | Path = RESULTS,
    executor: Executor | None = None,
    address: str | None = None,
    on_event: Callable[[Event, Tally], None] | None = None,
) -> Results:
    """Train what is missing of a sweep and return all its results.

    `results` is the folder above the sweep's own. `executor` overrides the sweep's `resources`; `address` joins a Ray
    cluster. `on_event` is called after every event has been stored. Raises HpxferError for bad input, an unwritable
    folder or a cluster that does not answer; failed trials are in the results. Interrupt it at any time: what has been
    stored stays, and the next run goes on from there.
    """
    job = sweep if isinstance(sweep, Job) else prepare(sweep, results=results)
    if job.missing and address is None:
        with _located(job.file):
            require_here(job.spec.data)  # a digest stands in for planning, and on a cluster for the nodes' own data
    store = Store.open(job.folder, write=True)
    store.save_sweep(job.spec, job.expansion.setting.data_digest)
    if job.missing:
        _train(job, store, executor or make_executor(job.spec, address), on_event)
    store.compact()
    return load_results(job.folder)


def make_executor(spec: SweepSpec, address: str | None) -> Executor:
    """Return the executor that the sweep's resources ask for; an address means Ray."""
    resources = spec.resources
    if resources.executor == "local" and address is None:
        from hpxfer.executors.local import LocalExecutor

        return LocalExecutor(workers=num_workers(resources.workers, cuda=has_cuda(resources.device)))
    from hpxfer.executors.ray import RayExecutor

    return RayExecutor(
        address=address,
        workers=resources.workers,
        device=resources.device,
        gpus_per_stack=resources.gpus_per_stack,
    )


def _train(job: Job, store: Store, executor: Executor, on_event: Callable[[Event, Tally], None] | None) -> None:
    by_id = {trial.id: trial for trial in job.missing}
    tally = Tally(num_left=len(by_id), tokens_left=sum(one.tokens for one in job.plan.shapes))

    def take(event: Event) -> None:
        if not isinstance(event, Progress):
            store.append([(by_id[result.trial_id], result) for result in event])
        tally.add(event)
        if on_event is not None:
            on_event(event, tally)

    resources = job.spec.resources
    how = TrainStack(resources.device, determinism=job.spec.training.determinism, kernels=resources.kernels)
    executor.run(longest_first(job), how, take)
    if tally.ended != tally.num_left:
        raise HpxferError(f"the executor ended with {tally.ended} of {tally.num_left} trials; run again to go on")


def longest_first(job: Job) -> list[Stack]:
    """Return the stacks of the missing trials, the costliest first: what is short fills the gaps at the end."""
    asked, workers = job.spec.resources.stack_size, job.plan.workers
    stacks = pack(job.missing, job.device, asked=asked, measured=job.measured, workers=workers)
    return sorted(stacks, key=lambda stack: -stack.flops)
