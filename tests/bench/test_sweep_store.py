"""The benchmark of large sweeps, on a small one."""

from __future__ import annotations

from hpxfer.bench.goals import GOALS
from hpxfer.bench.sweep_store import TRIALS_OF_A_SEED, Sizes, rows
from hpxfer.bench.table import _verdict


def test_the_rows_of_a_small_sweep() -> None:
    load, rerun, memory = rows(Sizes(stored=2, planned=4, small=1, rounds=1))
    assert [load.key, rerun.key, memory.key] == [goal.key for goal in GOALS if goal.key.startswith("store-")]
    assert load.numbers["trials"] == rerun.numbers["trials"] == memory.numbers["stored"] == 2 * TRIALS_OF_A_SEED
    assert load.numbers["points"] >= 256 * 2 * TRIALS_OF_A_SEED
    assert 0 < load.value == load.numbers["load_s"] + load.numbers["curves_s"]
    assert rerun.value > 0
    assert (memory.numbers["planned"], memory.numbers["few_planned"]) == (4 * TRIALS_OF_A_SEED, TRIALS_OF_A_SEED)
    assert memory.value == memory.numbers["peak_mb"] - memory.numbers["few_peak_mb"]


def test_what_is_at_most_is_missed_above() -> None:
    goal = next(goal for goal in GOALS if goal.key == "store-rerun")
    assert [_verdict(goal, value) for value in (2.9, 3.0, 3.1)] == ["", "", ", missed"]
