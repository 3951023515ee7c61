"""Results of a sweep with planted losses."""

from __future__ import annotations

from pathlib import Path

from planted_store import PlantedStore, planted_result

from hpxfer.results import Results, load_results
from hpxfer.spec import SweepSpec
from hpxfer.spec.data import points_with_data
from hpxfer.store import Store
from hpxfer.trial import DataRef, Expansion

DIGEST = "0123456789abcdef"


def planted_results(spec: SweepSpec, folder: Path, plan: PlantedStore) -> Results:
    """Return the results of a sweep over built-in text, loaded from a store that is written into `folder`."""
    data = DataRef(
        digest=DIGEST,
        tokenizer="ascii",
        vocab_size=128,
        validation_digest=spec.data.validation_digest,
        others=tuple((own.source, own.digest or "") for _, _, own in points_with_data(spec)),
    )
    expansion = Expansion(spec, data)
    store = Store.open(folder, write=True)
    store.append([(trial, planted_result(trial, plan)) for trial in expansion.trials() if plan.kept(trial)])
    store.save_sweep(spec, DIGEST)
    return load_results(folder)
