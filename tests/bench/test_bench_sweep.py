"""The sweep's benchmark: its arithmetic, and a tiny one through real processes."""

from __future__ import annotations

import pytest
import torch
from bench_cases import TINY

from hpxfer.bench.goals import GOALS
from hpxfer.bench.sweep import LONG_STEPS, Spent, measure, row_of

CPU = torch.device("cpu")


def test_starts_stay_and_training_grows_with_the_steps() -> None:
    spent = Spent(wall_s=30.0, trained_s=10.0, processes=4)
    assert spent.start_s == 5.0
    assert spent.at(200, 200) == 30.0
    assert spent.at(2000, 200) == 20.0 + 100.0


def test_the_rows_of_given_times() -> None:
    ways = {
        "stacked": [Spent(wall_s=10.0, trained_s=5.0, processes=1)],
        "cold": [Spent(wall_s=50.0, trained_s=10.0, processes=8)],
    }
    row = row_of(TINY, CPU, ways, TINY.steps, cold=8)
    assert (row.key, row.value, row.note) == ("sweep-cpu", 5.0, "")
    assert row.numbers == {"stacked_s": 10.0, "cold_s": 50.0, "stacked_start_s": 5.0, "cold_start_s": 5.0}
    long = row_of(TINY, CPU, ways, LONG_STEPS, cold=2)
    assert long.key == "sweep-cpu-2000"
    assert long.value == pytest.approx((40 + 10 * 2000 / 6) / (5 + 5 * 2000 / 6))
    assert long.note == "2 cold processes measured, scaled to 8"


def test_a_tiny_sweep_through_real_processes() -> None:
    short, long = measure(TINY, CPU, rounds=1, cold=1)
    assert {short.key, long.key} <= set(GOALS)
    assert short.value == pytest.approx(short.numbers["cold_s"] / short.numbers["stacked_s"])
    assert short.numbers["cold_start_s"] > 0
    assert short.numbers["cold_s"] > 8 * short.numbers["cold_start_s"]
