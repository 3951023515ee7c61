"""The benchmark of large sweeps, on a small one."""

from __future__ import annotations

from hpxfer.bench.goals import GOALS
from hpxfer.bench.sweep_store import TRIALS_PER_SEED, rows


def test_the_rows_of_a_small_sweep() -> None:
    load, rerun, memory = rows(stored=2, planned=4, small=1, rounds=1)
    assert [load.key, rerun.key, memory.key] == [key for key in GOALS if key.startswith("store-")]
    assert load.numbers["trials"] == rerun.numbers["trials"] == memory.numbers["stored"] == 2 * TRIALS_PER_SEED
    assert load.numbers["points"] >= 256 * 2 * TRIALS_PER_SEED
    assert 0 < load.value == load.numbers["load_s"] + load.numbers["curves_s"]
    assert rerun.value > 0
    assert (memory.numbers["planned"], memory.numbers["few_planned"]) == (4 * TRIALS_PER_SEED, TRIALS_PER_SEED)
    assert memory.value == memory.numbers["peak_mb"] - memory.numbers["few_peak_mb"]
