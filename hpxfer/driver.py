"""The driver: from a sweep to a results folder. The only writer of the store; it runs what is missing and no more."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hpxfer.data import check_length, data_ref
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import Executor
from hpxfer.executors.worker import TrainStack
from hpxfer.plan import Plan, make_plan
from hpxfer.results import Results, load_results
from hpxfer.shape import REQUIRED, Shape
from hpxfer.spec import SweepSpec, load_sweep
from hpxfer.stack import Stack, pack
from hpxfer.store import Store
from hpxfer.train.event import Event, Progress
from hpxfer.trial import Expansion, Trial

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
    expansion: Expansion
    folder: Path
    plan: Plan
    done: frozenset[str]  # trial ids
    cuda: bool

    @cached_property
    def missing(self) -> tuple[Trial, ...]:
        """The trials that are not done."""
        return tuple(trial for trial in self.expansion.trials() if trial.id not in self.done)


def prepare(sweep: SweepSpec | str | Path, *, results: str | Path = RESULTS) -> Job:
    """Return the sweep made ready: data found and digested, store looked through. Writes nothing."""
    spec = sweep if isinstance(sweep, SweepSpec) else load_sweep(sweep)
    expansion = Expansion(spec, data_ref(spec.data))
    check_length(spec)
    folder = Path(results) / spec.name
    store = Store.open(folder, write=False)
    done = frozenset(store.done_ids())
    cuda = has_cuda(spec.resources.device)
    return Job(
        spec=spec,
        expansion=expansion,
        folder=folder,
        plan=make_plan(expansion, done, cuda=cuda, measured=measured_trial_s(store) if done else None),
        done=done,
        cuda=cuda,
    )


def measured_trial_s(store: Store) -> dict[str, float]:
    """Return shape label -> median worker seconds of one stored trial: its share of its stack's time."""
    columns = ["width", "depth", "num_experts", "num_active", "expert_width", "head_dim", "wall_s", "stack_size"]
    seconds: dict[str, list[float]] = {}
    for row in store.read_trials().select(columns).to_pylist():
        if row["wall_s"] is not None and row["stack_size"]:
            shape = Shape(**{name: row[name] for name in REQUIRED})
            seconds.setdefault(shape.label(), []).append(row["wall_s"] / row["stack_size"])
    return {label: statistics.median(one) for label, one in seconds.items()}


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

        return LocalExecutor(workers=resources.workers)
    from hpxfer.executors.ray import RayExecutor

    return RayExecutor(
        address=address,
        workers=resources.workers,
        device=resources.device,
        gpus_per_stack=resources.gpus_per_stack,
    )


def has_cuda(device: str) -> bool:
    """Return whether stacks of this machine run on a GPU; looks without importing torch."""
    return device == "cuda" or (device == "auto" and Path("/dev/nvidia0").exists())


def _train(job: Job, store: Store, executor: Executor, on_event: Callable[[Event, Tally], None] | None) -> None:
    by_id = {trial.id: trial for trial in job.missing}
    tally = Tally(num_left=len(by_id), tokens_left=sum(one.tokens for one in job.plan.shapes))

    def take(event: Event) -> None:
        if not isinstance(event, Progress):
            store.append([(by_id[result.trial_id], result) for result in event])
        tally.add(event)
        if on_event is not None:
            on_event(event, tally)

    executor.run(longest_first(job), TrainStack(job.spec.resources.device), take)
    if tally.ended != tally.num_left:
        raise HpxferError(f"the executor ended with {tally.ended} of {tally.num_left} trials; run again to go on")


def longest_first(job: Job) -> list[Stack]:
    """Return the stacks of the missing trials, the costliest first: what is short fills the gaps at the end."""
    stacks = pack(job.missing, cuda=job.cuda, asked=job.spec.resources.stack_size)
    return sorted(stacks, key=lambda stack: -stack.flops)
