"""Reuse: trials of other results folders. A run copies them when the search asks for them, and does not train them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.search import Outcome, Search
from hpxfer.spec import SweepSpec
from hpxfer.store import LOSS_COLUMNS, SWEEP_FILE, ResultsLocation, Store, location_at


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Other results folders and their trials."""

    folders: tuple[str, ...] = ()  # as the user knows them: paths or URIs
    stores: tuple[Store, ...] = ()
    has: tuple[Mapping[str, Outcome], ...] = ()  # per store: trial id -> outcome of the trials that have ended
    wanted: Mapping[str, Outcome] = field(default_factory=dict)  # what the sweep would copy now

    @property
    def problems(self) -> tuple[str, ...]:
        """The files of those folders that could not be read."""
        return tuple(problem for store in self.stores for problem in store.problems)

    def counts(self) -> dict[str, int]:
        """Return folder -> how many trials would be copied from it: the first one that has a trial gives it."""
        folders = list(zip(self.folders, self.has, strict=True))
        sources = (next(folder for folder, has in folders if trial_id in has) for trial_id in self.wanted)
        return {**dict.fromkeys(self.folders, 0), **Counter(sources)}

    def lines(self) -> list[str]:
        """Return one line per folder: how many trials are copied from it."""
        return [f"{number} trials are copied from {folder}" for folder, number in self.counts().items()]

    def of(self, trial_ids: Collection[str]) -> dict[str, Outcome]:
        """Return the outcomes of the trials that a folder has. If several have a trial, the first one counts."""
        out: dict[str, Outcome] = {}
        for has in self.has:
            out.update((key, has[key]) for key in trial_ids if key in has and key not in out)
        return out

    def asked_by(self, search: Search, outcomes: Mapping[str, Outcome]) -> Reuse:
        """Return this with `wanted`: the trials that the search asks for, round by round, and that a folder has."""
        known, wanted = dict(outcomes), dict[str, Outcome]()
        while self.stores and (found := self.of([trial.id for trial in search.ask(known, ())])):
            known.update(found)
            wanted.update(found)
        return replace(self, wanted=wanted)

    def copy(self, trial_ids: Collection[str], store: Store) -> set[str]:
        """Copy the trials that the folders have into `store`, and return their ids."""
        left = set(trial_ids)
        for other, has in zip(self.stores, self.has, strict=True):
            if found := left & has.keys():
                left -= store.adopt(other, found)
        return set(trial_ids) - left


def stored_outcomes(
    store: Store, spec: SweepSpec, *, own: bool = True
) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Return the outcomes of the stored trials, and apart from them those of trials that lost the curves they need.

    Trials that were stopped early are trials of the sweep's `own` folder alone, as long as it stops trials.
    """
    stopped = own and spec.early_stopping.asha is not None
    stored = store.outcomes(LOSS_COLUMNS[spec.judge.loss], stopped=stopped)
    found = {trial_id: Outcome.of(*of_trial) for trial_id, of_trial in stored.items()}
    ids = store.without_curves() if spec.resources.curves == "all" else set()
    lost = {trial_id: found.pop(trial_id) for trial_id in ids & found.keys()}
    return found, lost


def open_reuse(folders: Sequence[str | Path], own: ResultsLocation, spec: SweepSpec) -> Reuse:
    """Return the trials of the folders. Raise HpxferError if one is no results folder, or is the sweep's own."""
    stores: dict[str, Store] = {}
    for name in folders:
        location = location_at(name)
        if not (location.folder / SWEEP_FILE).is_file():
            fix = "name the folder of a sweep that was run, e.g. results/quickstart"
            raise HpxferError(f"--reuse {name}: must be a results folder with {SWEEP_FILE}, got none; {fix}")
        if location.folder.resolve() == own.folder.resolve() or location.where == own.where:
            raise HpxferError(f"--reuse {name}: must be another folder than the sweep's own; leave it out")
        stores[location.where] = Store.open(location.folder, write=False)
    has = tuple(stored_outcomes(store, spec, own=False)[0] for store in stores.values())
    return Reuse(folders=tuple(stores), stores=tuple(stores.values()), has=has)
