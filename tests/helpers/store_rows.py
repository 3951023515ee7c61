"""Results of a tiny sweep without any training, for stores that travel."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from planted_results import DIGEST
from planted_store import PlantedStore, planted_result
from sweep_text import SWEEP

from hpxfer.spec.load import parse_sweep
from hpxfer.store import Store
from hpxfer.store.location import Mirror
from hpxfer.store.rows import Pair
from hpxfer.trial import DataRef, Expansion

SPEC = parse_sweep(SWEEP.replace("lr: [0.01]", "lr: {log2: [-9, -6]}"))


def planted_pairs() -> list[Pair]:
    """Return every trial of SPEC with its result."""
    trials = Expansion(SPEC, DataRef(digest=DIGEST, tokenizer="ascii", vocab_size=128)).trials()
    return [(trial, planted_result(trial, PlantedStore(points=50))) for trial in trials]


def stored(folder: Path) -> dict[str, str]:
    """Return trial id -> status of what a store holds."""
    rows = Store.open(folder, write=False).read_trials()
    return dict(zip(rows["trial_id"].to_pylist(), rows["status"].to_pylist(), strict=True))


def num_points(folder: Path) -> int:
    """Return how many points all curves in a store have."""
    return len(Store.open(folder, write=False).read_curves())


def abandon(place: Mirror) -> Path:
    """End the place as a kill would: its mirror stays, its lock is free."""
    atexit.unregister(place.close)
    os.close(place._lock)
    return place.folder
