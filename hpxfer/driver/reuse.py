"""Reuse: trials that another results folder has already. They are copied when the search asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.rekey import holds_legacy_ids, how_to_rekey
from hpxfer.search import Outcome, Search
from hpxfer.store import SWEEP_FILE, Store
from hpxfer.store.location import ResultsLocation, location_at
from hpxfer.store.losses import LOSS_COLUMNS


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Other results folders, and what they have."""

    places: tuple[str, ...] = ()  # the folders' names
    stores: tuple[Store, ...] = ()
    has: tuple[Mapping[str, Outcome], ...] = ()  # of each store, what is done in it
    wanted: Mapping[str, Outcome] = field(default_factory=dict)  # what the sweep would copy today

    @property
    def problems(self) -> tuple[str, ...]:
        """The files of those folders that were passed over."""
        return tuple(problem for store in self.stores for problem in store.problems)

    def counts(self) -> dict[str, int]:
        """Return folder -> how many trials would be copied from it."""
        return {**dict.fromkeys(self.places, 0), **Counter(self.sources().values())}

    def lines(self) -> list[str]:
        """Return a line for each folder that trials are copied from."""
        return [f"{number} trials are copied from {folder}" for folder, number in self.counts().items()]

    def sources(self) -> dict[str, str]:
        """Return trial id -> the folder it would be copied from."""
        folders = list(zip(self.places, self.has, strict=True))
        return {trial_id: next(location for location, has in folders if trial_id in has) for trial_id in self.wanted}

    def of(self, trial_ids: Collection[str]) -> dict[str, Outcome]:
        """Return those of the trials that a folder has; the first that has one counts."""
        out: dict[str, Outcome] = {}
        for has in self.has:
            out.update((key, has[key]) for key in trial_ids if key in has and key not in out)
        return out

    def asked_by(self, search: Search, outcomes: Mapping[str, Outcome]) -> Reuse:
        """Return this with `wanted`: what a search that knows `outcomes` asks for, step by step, and a folder has."""
        known, wanted = dict(outcomes), dict[str, Outcome]()
        while self.stores and (found := self.of([trial.id for trial in search.ask(known, (), None)])):
            known.update(found)
            wanted.update(found)
        return replace(self, wanted=wanted)

    def copy(self, trial_ids: Collection[str], store: Store) -> set[str]:
        """Copy what the folders have of the trials into `store` and return their ids."""
        left = set(trial_ids)
        for other, has in zip(self.stores, self.has, strict=True):
            if found := left & has.keys():
                left -= store.adopt(other, found)
        return set(trial_ids) - left


def open_reuse(folders: Sequence[str | Path], own: ResultsLocation, loss: str) -> Reuse:
    """Return what the folders have; raise HpxferError for one that is no results folder, or the sweep's own."""
    stores: dict[str, Store] = {}
    for name in folders:
        location = location_at(name)
        if not (location.folder / SWEEP_FILE).is_file():
            fix = "name the folder of a sweep that was run, e.g. results/quickstart"
            raise HpxferError(f"--reuse {name}: must be a results folder with {SWEEP_FILE}, got none; {fix}")
        if location.folder.resolve() == own.folder.resolve() or location.where == own.where:
            raise HpxferError(f"--reuse {name}: must be another folder than the sweep's own; leave it out")
        if holds_legacy_ids(location):
            raise HpxferError(f"--reuse {how_to_rekey(location.where)}; then give the same command again")
        stores[location.where] = Store.open(location.folder, write=False)
    has = tuple(
        {key: Outcome(status, value) for key, (status, value) in store.outcomes(LOSS_COLUMNS[loss]).items()}
        for store in stores.values()
    )
    return Reuse(places=tuple(stores), stores=tuple(stores.values()), has=has)
