"""PreparedSweep: a sweep made ready. What its results folder has of it, what other folders have, and the plan for the rest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd

from hpxfer.data import check_length, data_ref
from hpxfer.driver.reuse import Reuse, open_reuse
from hpxfer.errors import HpxferError
from hpxfer.executors.kinds import EXECUTORS
from hpxfer.plan.hardware import Hardware, hardware_named, here
from hpxfer.plan.packing import Device, Measured
from hpxfer.plan.plan import Counts, Plan, grid_counts, make_plan, search_counts, workers_of
from hpxfer.rekey import holds_legacy_ids, how_to_rekey
from hpxfer.scaling.shape import Shape
from hpxfer.search import Outcome, Search, make_search
from hpxfer.spec import SweepSpec, load_sweep
from hpxfer.spec.sweep import ResourcesSpec
from hpxfer.spec.yaml_file import read_yaml
from hpxfer.store import SHAPE_COLUMNS, Store
from hpxfer.store.location import ResultsLocation, open_location
from hpxfer.store.losses import LOSS_COLUMNS
from hpxfer.trial import TRAINER_VERSION, Expansion, Trial

RESULTS = "results"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a plan is priced on: hardware other than the device, and what an hour of one costs."""

    hardware: Hardware | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, kw_only=True)
class PreparedSweep:
    """A sweep made ready: its plan, and what is known of its trials."""

    spec: SweepSpec
    file: Path | None  # where the sweep was read from
    expansion: Expansion
    search: Search
    location: ResultsLocation  # of its results
    plan: Plan  # of the hardware that was named, if any was
    real: Plan  # of the device that will run it: consent and the time left are about this one
    outcomes: Mapping[str, Outcome]  # by trial id, of the store
    reuse: Reuse  # the other folders, and what of them the sweep would copy
    device: Device
    workers: int  # stacks that run at once on it
    measured: Mapping[Shape, Measured]  # what the folder's trials say of their shapes
    problems: tuple[str, ...]  # files of the store that were passed over
    cost: Cost

    @property
    def folder(self) -> Path:
        """The results folder on this disk: the location itself, or its mirror."""
        return self.location.folder

    @cached_property
    def known(self) -> Mapping[str, Outcome]:
        """The outcomes of the store, and those that would be copied into it."""
        return {**self.outcomes, **self.reuse.wanted} if self.reuse.wanted else self.outcomes

    @cached_property
    def missing(self) -> tuple[Trial, ...]:
        """The trials to train now; of an adaptive search, the first ones."""
        return tuple(self.search.ask(self.known, (), None))


def prepare(
    sweep: SweepSpec | str | Path,
    *,
    results: str | Path | None = None,
    executor: str | None = None,
    address: str | None = None,
    reuse: Sequence[str | Path] = (),
    hardware: str | None = None,
    price_per_hour: float | None = None,
    early_stopping: str | None = None,
) -> PreparedSweep:
    """Return the sweep made ready: data found and digested, store looked through. Writes nothing.

    `results` is the folder or URI above the sweep's own, by default the sweep's storage or `results`. `executor` (ray |
    local) and `early_stopping` (none) override the sweep's. `reuse` are results folders whose trials need not be
    trained again. The plan is for the cluster at `address` or for `hardware`, and has a price if an hour has one.
    """
    if price_per_hour is not None and not 0 <= price_per_hour < math.inf:
        raise HpxferError(f"--price-per-hour must be a number from 0, got {price_per_hour}")
    spec = overridden(sweep if isinstance(sweep, SweepSpec) else load_sweep(sweep), executor, early_stopping)
    file = None if isinstance(sweep, SweepSpec) else Path(sweep)
    with located(file):
        expansion = Expansion(spec, data_ref(spec.data))
        check_length(spec)
    location = open_location(results or spec.storage or RESULTS, spec.name)
    device = _device(spec.resources, address)
    cost = Cost(hardware=None if hardware is None else hardware_named(hardware), price_per_hour=price_per_hour)
    return _ready(spec, file, expansion, location, open_reuse(reuse, location, spec.judge.loss), device, cost)


def overridden(spec: SweepSpec, executor: str | None, early_stopping: str | None) -> SweepSpec:
    """Return the sweep with what the command line says instead."""
    changed: dict[str, Any] = {}
    if executor is not None:
        EXECUTORS.get(executor, "--executor")
        changed["resources"] = spec.resources.model_copy(update={"executor": executor})
    if early_stopping is not None:
        if early_stopping != "none":
            raise HpxferError(
                f"--early-stopping must be none, got {early_stopping!r}; what else there is stands in the sweep file"
            )
        changed["early_stopping"] = type(spec.early_stopping)()
    return spec.model_copy(update=changed)


def refreshed(job: PreparedSweep, store: Store) -> PreparedSweep:
    """Return the job as the store is now: another driver may have been at work since it was made."""
    if _outcomes(store, job.spec).keys() == job.outcomes.keys():
        return job
    reuse = replace(job.reuse, wanted={})
    return _ready(job.spec, job.file, job.expansion, job.location, reuse, job.device, job.cost)


def _ready(
    spec: SweepSpec, file: Path | None, expansion: Expansion, location: ResultsLocation, reuse: Reuse, device: Device, cost: Cost
) -> PreparedSweep:
    store = Store.open(location.folder, write=False)
    outcomes = _outcomes(store, spec)
    search = make_search(expansion, location.folder, spec.judge.loss)
    reuse = reuse.asked_by(search, outcomes)
    known = measured(store, cuda=device.cuda) if outcomes else {}
    done = {**outcomes, **reuse.wanted}
    planned = partial(
        make_plan,
        expansion,
        done,
        device,
        measured=known,
        warnings=tuple(_warnings(spec, device, store, location)),
        counts=grid_counts(expansion, done) if spec.search.kind == "grid" else _counts(search, done),
        price_per_hour=cost.price_per_hour,
    )
    real = planned()
    return PreparedSweep(
        spec=spec,
        file=file,
        expansion=expansion,
        search=search,
        location=location,
        plan=real if cost.hardware is None else planned(hardware=cost.hardware),
        real=real,
        outcomes=outcomes,
        reuse=reuse,
        device=device,
        workers=workers_of(spec.resources, device),
        measured=known,
        problems=(*store.problems, *reuse.problems),
        cost=cost,
    )


def _device(resources: ResourcesSpec, address: str | None) -> Device:
    """Return what stacks will run on: this machine, or the cluster at `address`."""
    if address is None:
        return here(resources.device)
    from hpxfer.executors.ray_cluster import describe

    return describe(address, device=resources.device, gpu_type=resources.gpu_type)


def _counts(search: Search, done: Mapping[str, Outcome]) -> Counts:
    """Return the counts of a search that chooses: what it has had, and what may follow at most."""
    asked = Counter(trial.shape for trial in search.ask(done, (), None))
    return search_counts(search.progress(), now=asked)


def _outcomes(store: Store, spec: SweepSpec) -> dict[str, Outcome]:
    found = store.outcomes(LOSS_COLUMNS[spec.judge.loss], stopped=spec.early_stopping.asha is not None)
    return {key: Outcome(status, loss) for key, (status, loss) in found.items()}


@contextmanager
def located(file: Path | None) -> Iterator[None]:
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
    names = ["wall_s", "peak_bytes", "stack_size", "halvings", "device", "trainer_version"]
    rows = store.read_trials([*SHAPE_COLUMNS, *names]).to_pandas()
    rows = rows[(rows["stack_size"] > 0) & (rows["trainer_version"] == TRAINER_VERSION)]
    rows = rows[(rows["device"] != "cpu") == cuda]
    return {
        Shape(**dict(zip(SHAPE_COLUMNS, map(int, dims), strict=True))): _measured(found, cuda)
        for dims, found in rows.groupby(list(SHAPE_COLUMNS))
    }


def _measured(rows: pd.DataFrame, cuda: bool) -> Measured:
    seconds = (rows["wall_s"] / rows["stack_size"]).median()
    # A process's peak on a CPU is that of all its stacks; a device's is reset for each.
    peak = (rows["peak_bytes"] / rows["stack_size"]).max() if cuda else math.nan
    most = rows["stack_size"][rows["halvings"] > 0].max()
    return Measured(
        trial_s=None if math.isnan(seconds) else float(seconds),
        trial_bytes=None if math.isnan(peak) else float(peak),
        most=None if math.isnan(most) else int(most),
        stack_size=float(rows["stack_size"].median()),
    )


def _warnings(spec: SweepSpec, device: Device, store: Store, location: ResultsLocation) -> Iterator[str]:
    """Yield what a user should know of the folder and of the device before a run."""
    if holds_legacy_ids(location):
        yield f"{how_to_rekey(location.where)}: a run waits for that"
    if spec.training.determinism == "fast" and not device.cuda:
        yield "training.determinism: on a CPU, fast is the same code as strict: the same bits whatever the stack"
    version = store.trainer_version()
    if version is not None and version < TRAINER_VERSION:
        yield (
            f"{store.folder}: its trials were made by version {version} of the trainer, this hpxfer trains as version "
            f"{TRAINER_VERSION}: a run trains them all anew and keeps the old rows; give another folder with --results "
            f"to keep this one as it is"
        )
