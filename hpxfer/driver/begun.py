"""What a results folder began with. A run goes on with it where the sweep file leaves a value to hpxfer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.spec import SweepSpec
from hpxfer.spec.model_section import Ties
from hpxfer.spec.ties import choice_of, resolved, ties_of
from hpxfer.store import Store
from hpxfer.store.sweep_file import load_stored


def stored_sweep(folder: Path) -> SweepSpec | None:
    """Return the sweep that a results folder holds, or None if it holds none that can be read. Nothing is imported."""
    try:
        return load_stored(folder)
    except HpxferError:
        return None  # no sweep yet, or one that the run reports by itself


def begun(folder: Path, spec: SweepSpec) -> SweepSpec | None:
    """Return the sweep that a results folder holds. If it cannot be read, it is `spec` as the stored trials have it."""
    found = stored_sweep(folder)
    if found is not None or not (ties := _ties_of_trials(Store.open(folder, write=False))):
        return found
    return spec.model_copy(update={"model": spec.model.model_copy(update={"ties": ties})})


def goes_on(folder: Path, where: str, spec: SweepSpec) -> Iterator[str]:
    """Yield the tables for which a run goes on with other ties than a new folder would get."""
    stored = stored_sweep(folder)
    if stored is None:
        return
    fresh = resolved(spec.model_copy(update={"model": spec.model.model_copy(update={"ties": None})}))
    known = [choice_of(chosen) for chosen in stored.parameterizations]
    for choice in map(choice_of, spec.parameterizations):
        ties, new = ties_of(spec, choice), ties_of(fresh, choice)
        if ties != new and choice in known and ties == ties_of(stored, choice):
            yield (
                f"{where}: {choice.label()} has model.ties: {ties} here, and a run goes on with it; a new folder would "
                f"get {new}: name one with --results to have it"
            )


def _ties_of_trials(store: Store) -> dict[str, Ties]:
    """Return label of a table -> how its stored trials break ties, where their routers have a choice."""
    names = ["parameterization", "conventions", "num_experts", "num_active", "setting"]
    out: dict[str, Ties] = {}
    for row in store.read_trials(names).to_pylist():
        if row["parameterization"] is not None and (row["num_active"] or 0) < (row["num_experts"] or 0):
            conventions = tuple(sorted(json.loads(row["conventions"]).items()))
            label = Parameterization(name=row["parameterization"], conventions=conventions).label()
            out[label] = json.loads(row["setting"]).get("ties", "index")
    return out
