"""Prepare a sweep: its precision, what its results folder and others have of it, and the plan for the rest."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hpxfer.data import check_length, data_cautions, data_ref, point_keys
from hpxfer.driver.reuse import Reuse, open_reuse, stored_outcomes
from hpxfer.driver.who_trains import Trainer, who_trains
from hpxfer.errors import HpxferError, shown
from hpxfer.executors import EXECUTORS
from hpxfer.plan import (
    Device,
    Hardware,
    Measured,
    Plan,
    Precision,
    grid_counts,
    hardware_named,
    make_plan,
    outlook,
    search_counts,
    this_machine,
)
from hpxfer.recipe import load_sweep
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.search import Outcome, Search, make_search
from hpxfer.spec import (
    AUTO,
    ResourcesSpec,
    SweepSpec,
    digested,
    in_file,
    key_path,
    precision_on,
    read_yaml,
    resolved,
    stored_names,
    with_overrides,
    with_point_data,
    with_precision,
)
from hpxfer.store import (
    SHAPE_COLUMNS,
    SWEEP_FILE,
    ResultsLocation,
    Store,
    damage,
    location_at,
    shape_of_row,
    stored_sweep,
)
from hpxfer.trial import TRAINER_VERSION, Expansion, Trial

RESULTS = "results"


def precision_of(spec: SweepSpec, device: Device, location: ResultsLocation, address: str | None) -> Precision:
    """Return the precision of a sweep's trials: that with which the folder began, else what the device chooses.

    `prepare` asks before it makes any trial. Nothing after it sees `auto`: no id, no worker, no stored sweep.
    """
    chosen = precision_on(cuda=device.cuda)
    began = begun_with(location.folder) if spec.precision == AUTO else None
    name = (device.name or "CUDA") if device.cuda else "CPU"
    cluster = "" if address is None else " of the Ray cluster" + ("" if address == "auto" else f" at {address}")
    return Precision(
        asked=spec.precision,
        value=(began or chosen) if spec.precision == AUTO else spec.precision,
        on_device=chosen,
        device=name + cluster,
        began=began,
        folder=location.where,
    )


def begun_with(folder: Path) -> str | None:
    """Return the precision that a results folder began with, or None if nothing has begun there.

    Its sweep.yaml says it, which a run writes before it trains. If that file is damaged, the stored trials say it.
    """
    stored = stored_sweep(folder)
    if stored is not None and stored.precision != AUTO:
        return stored.precision
    rows = Store.open(folder, write=False).read_trials(["precision"])
    counts = Counter(value for value in rows["precision"].to_pylist() if value is not None)
    return max(counts, key=lambda value: counts[value], default=None)


def require_same(precision: Precision, folder: Path) -> None:
    """Raise HpxferError if another run has begun in the folder with another precision since this one was prepared."""
    began = begun_with(folder) if precision.is_auto else None
    if began not in (None, precision.value):
        raise HpxferError(
            f"precision: {precision.folder} has begun with {began} in the meantime, and this run was planned in "
            f"{precision.value}; give the same command again to go on with {began}"
        )


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a sweep was prepared from, beside its contents."""

    file: Path | None  # the sweep file, if it was read from one
    overrides: tuple[str, ...]  # that changed keys of the file
    address: str | None  # of the Ray cluster that will train it
    hardware: Hardware | None  # that the plan is for, if not the device that will train it
    price_per_hour: float | None


@dataclass(frozen=True, kw_only=True)
class PreparedSweep:
    """A sweep that is ready to run: its plan, and what is known of its trials."""

    given: Given
    expansion: Expansion
    search: Search
    location: ResultsLocation  # of the sweep's results
    plan: Plan  # for the hardware that the user named, else the same as `real`
    real: Plan  # for the device that will run it; consent and the time left are about this one
    outcomes: Mapping[str, Outcome]  # trial id -> outcome, of the stored trials
    reuse: Reuse  # the other folders, and which of their trials the sweep would copy
    measured: Mapping[Shape, Measured]  # time and memory of stored trials
    problems: tuple[str, ...]  # files of the store that could not be read
    precision: Precision
    lost: Mapping[str, Outcome]  # of stored trials whose curves are lost, so that they are trained again

    @property
    def spec(self) -> SweepSpec:
        return self.expansion.spec

    @property
    def trainer(self) -> Trainer:
        return who_trains(self.spec)

    @property
    def folder(self) -> Path:
        """The results folder on this disk. For a URI it is a mirror."""
        return self.location.folder

    @property
    def lasting_folder(self) -> Path:
        """The folder on this disk for what other programs write. A mirror does not last."""
        return Path(RESULTS, self.spec.name).absolute() if self.location.is_remote else self.folder.absolute()

    @cached_property
    def known(self) -> Mapping[str, Outcome]:
        """The outcomes of stored trials, and of trials that would be copied from other folders."""
        return {**self.outcomes, **self.reuse.wanted} if self.reuse.wanted else self.outcomes

    @cached_property
    def missing(self) -> tuple[Trial, ...]:
        """The trials to train now. An adaptive search names only its first ones."""
        return tuple(self.search.ask(self.known, ()))


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
    plugins: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> PreparedSweep:
    """Return the sweep ready to run: its data is found and digested, its stored trials are read. Writes nothing.

    `results` is the folder or URI that holds the sweep's own folder; the default is the sweep's `storage`, else
    `results`. If `sweep` is the sweep.yaml of a results folder, it is the folder above that one instead of `results`.
    `executor` and `early_stopping` (none) replace what the sweep says. `reuse` names results folders whose trials need
    not be trained again. The plan is for the cluster at `address`, or for `hardware`. It has a price if
    `price_per_hour` is given. `plugins` names plug-ins beside those of the sweep file. `overrides` change keys of the
    file, e.g. `training.steps=100`.
    """
    if price_per_hour is not None and not 0 <= price_per_hour < math.inf:
        raise HpxferError(f"--price-per-hour must be a number from 0, got {price_per_hour}")
    given = sweep if isinstance(sweep, SweepSpec) else load_sweep(sweep, plugins=plugins, overrides=overrides)
    spec = _without_defaults(overridden(given, executor, early_stopping))
    file = None if isinstance(sweep, SweepSpec) else Path(sweep)
    with located(file, overrides):
        who_trains(spec).require_sweep(reuses=bool(reuse))
        spec = digested(spec)
        data = data_ref(spec.data, point_keys(spec))
        check_length(spec)
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"validation_digest": data.validation_digest})})
    digests = dict(data.others)
    spec = with_point_data(spec, lambda own: own.model_copy(update={"digest": digests[own.source]}))
    location = location_at(results or spec.storage or _root_of_stored(file, spec.name) or RESULTS, spec.name)
    device = _device(spec.resources, address)
    precision = precision_of(spec, device, location, address)
    spec = with_precision(resolved(spec), precision.value)
    how = Given(
        file=file,
        overrides=tuple(overrides),
        address=address,
        hardware=None if hardware is None else hardware_named(hardware),
        price_per_hour=price_per_hour,
    )
    return _ready(how, Expansion(spec, data), location, open_reuse(reuse, location, spec), device, precision)


def _root_of_stored(file: Path | None, name: str) -> Path | None:
    """Return the folder that holds the results of the sweep if `file` is the sweep.yaml of these results, else None."""
    if file is None or file.name != SWEEP_FILE or not any(file.parent.glob("trials*.parquet")):
        return None
    folder = file.parent if file.parent.name else Path(os.path.abspath(file.parent))
    return folder.parent if folder.name == name else None


def overridden(spec: SweepSpec, executor: str | None, early_stopping: str | None) -> SweepSpec:
    """Return the sweep with the values that the command line gives instead of its own."""
    changed: dict[str, Any] = {}
    if executor is not None:
        EXECUTORS.get(executor, "--executor")
        changed["resources"] = spec.resources.model_copy(update={"executor": executor})
    if early_stopping is not None:
        if early_stopping != "none":
            raise HpxferError(
                f"--early-stopping must be none, got {shown(early_stopping)}; turn it on in the sweep file"
            )
        changed["early_stopping"] = type(spec.early_stopping)()
    return spec.model_copy(update=changed)


def _without_defaults(spec: SweepSpec) -> SweepSpec:
    """Return the sweep without the conventions of a plug-in's table that are given at their default.

    The identity and the label of a choice leave defaults out. Stored results are read without the code of the table,
    which alone knows its defaults, so the stored sweep names only the others.
    """
    own, arms = stored_names(spec.plugins or ()).get("parameterization", set()), []
    for arm in spec.parameterizations:
        if arm.table in own:
            changed = parameterization(arm.table, arm.conventions).changed_conventions()
            arm = arm.model_copy(update={"conventions": changed})
        arms.append(arm)
    return spec.model_copy(update={"parameterizations": tuple(arms)})


def refreshed(prepared: PreparedSweep, store: Store) -> PreparedSweep:
    """Return the sweep prepared anew if another driver has stored trials since it was prepared."""
    if stored_outcomes(store, prepared.spec)[0].keys() == prepared.outcomes.keys():
        return prepared
    device = prepared.real.device
    return _ready(prepared.given, prepared.expansion, prepared.location, prepared.reuse, device, prepared.precision)


def _ready(
    given: Given,
    expansion: Expansion,
    location: ResultsLocation,
    reuse: Reuse,
    device: Device,
    precision: Precision,
) -> PreparedSweep:
    spec, store = expansion.spec, Store.open(location.folder, write=False)
    trainer = who_trains(spec)
    outcomes, lost = stored_outcomes(store, spec)
    search = make_search(expansion, lambda: store.read_trials().to_pandas())
    reuse = reuse.asked_by(search, outcomes)
    done = {**outcomes, **reuse.wanted}
    known = measured(store, cuda=trainer.on_cuda(device), precision=spec.precision) if outcomes else {}
    if spec.search_row.lists_trials:
        counts = grid_counts(expansion, done)
    else:
        asked = Counter(trial.shape for trial in search.ask(done, ()))  # first: the search then knows its progress
        counts = search_counts(search.progress(), now=asked)
    of_trainer = trainer.cautions(store, device, expansion.setting.vocab_size, given.address)
    warnings = (*of_trainer, *_warnings(spec, store, location, precision))
    expected = outlook(expansion, done) if counts.total != counts.done else None

    def planned(hardware: Hardware | None) -> Plan:
        """Return the plan for some hardware, by default the device, in the precision that the trials have there."""
        here = precision if hardware is None else precision.on(hardware.title, cuda=hardware.cuda)
        value = here.priced or here.value
        # Other trials, as many of each shape: only their rate and memory differ.
        others = expansion if value == spec.precision else Expansion(with_precision(spec, value), expansion.data)
        plan = make_plan(
            others,
            done,
            device,
            measured=known,
            warnings=warnings,
            counts=counts,
            hardware=hardware,
            price_per_hour=given.price_per_hour,
        )
        return replace(plan, chosen=here, outlook=expected)

    real = planned(None)
    return PreparedSweep(
        given=given,
        expansion=expansion,
        search=search,
        location=location,
        plan=real if given.hardware is None else planned(given.hardware),
        real=real,
        outcomes=outcomes,
        reuse=reuse,
        measured=known,
        problems=(*store.problems, *reuse.problems),
        precision=precision,
        lost=lost,
    )


def _device(resources: ResourcesSpec, address: str | None) -> Device:
    """Return the device that stacks will run on: this machine's, or that of the cluster at `address`."""
    if address is None:
        return this_machine(resources.device)
    from hpxfer.executors.ray_cluster import device_at

    return device_at(address, resources)


@contextmanager
def located(file: Path | None, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Put the place before an error that starts with a key of the sweep file, e.g. `data.source: ...`.

    The place is the file and the line, or the option that overrides the key.
    """
    try:
        yield
    except HpxferError as error:
        starts = re.compile(r"^((?:axes|data|resources|trainer|training)(?:[.\[][^ \n]*)?)(?=: )", re.MULTILINE)
        if file is None or not starts.search(str(error)):
            raise
        given = with_overrides(read_yaml(file), overrides)
        text = starts.sub(lambda key: given.where(in_file(given, key_path(key[0]))), str(error))
        raise HpxferError(text) from None


def measured(store: Store, *, cuda: bool, precision: str = "float32") -> dict[Shape, Measured]:
    """Return shape (with batch and steps) -> time and memory of stored trials, of this trainer on such a device in a
    precision.
    """
    names = ["wall_s", "peak_bytes", "stack_size", "halvings", "device", "trainer_version", "precision"]
    rows = store.read_trials([*SHAPE_COLUMNS, *names]).to_pandas()
    rows = rows[(rows["stack_size"] > 0) & (rows["trainer_version"] == TRAINER_VERSION)]
    rows = rows[((rows["device"] != "cpu") == cuda) & (rows["precision"] == precision)]
    found = {}
    for dims, some in rows.groupby(list(SHAPE_COLUMNS), dropna=False):
        seconds = (some["wall_s"] / some["stack_size"]).median()
        # On a CPU the peak of a process covers all its stacks; on a device it is reset for each stack.
        peak = (some["peak_bytes"] / some["stack_size"]).max() if cuda else math.nan
        most = some["stack_size"][some["halvings"] > 0].max()
        found[shape_of_row(dict(zip(SHAPE_COLUMNS, dims, strict=True)))] = Measured(
            trial_s=None if math.isnan(seconds) else float(seconds),
            trial_bytes=None if math.isnan(peak) else float(peak),
            most=None if math.isnan(most) else int(most),
            stack_size=float(some["stack_size"].median()),
        )
    return found


def _warnings(spec: SweepSpec, store: Store, location: ResultsLocation, precision: Precision) -> Iterator[str]:
    """Yield what the user should know about the folder, the data and the device before a run."""
    if why := damage(location.folder):
        yield why
    yield from data_cautions(spec.data)
    if caution := precision.caution():
        yield caution
    version = store.trainer_version()
    if version is not None and version < TRAINER_VERSION:
        yield (
            f"{store.folder}: its trials were trained by version {version} of the trainer, and this hpxfer has version "
            f"{TRAINER_VERSION}; a run trains all of them again and keeps the old rows; give another folder with "
            f"--results to keep this one as it is"
        )
    before = stored_sweep(store.folder)
    stored = {plugin.name: plugin.digest for plugin in (before.plugins if before else None) or ()}
    for plugin in spec.plugins or ():
        if stored.get(plugin.name, plugin.digest) != plugin.digest:
            yield (
                f"plugins: {plugin.name}: changed since it trained what {store.folder} holds; a run trains with the "
                "new one and keeps the old rows; set version = ... in the file where an edit changes no number"
            )
