"""What Ray costs a trial: the arithmetic of its rows, and a small one through real processes."""

from __future__ import annotations

import pytest

from hpxfer.bench import sweep_ray
from hpxfer.bench.sweep_ray import Spent, rows


def test_each_row_has_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"ours": Spent(all_s=20.0, run_s=10.0), "tune": Spent(all_s=25.0, run_s=15.0)}
    monkeypatch.setattr(sweep_ray, "_in_a_process", lambda way, count: spent[way])
    trial, tune = rows()
    assert (trial.key, trial.value, trial.unit) == ("ray-trial", 10.0, "ms")
    assert (tune.key, tune.value, tune.unit) == ("ray-tune", pytest.approx(30.0), "x")
    assert trial.numbers == {"ours_all_ms": 10.0, "ours_ms": 5.0, "tune_ms": pytest.approx(150.0)}


def test_both_ways_through_real_processes() -> None:
    trial, tune = rows(num_ours=20, num_tune=4)
    assert trial.numbers["ours_all_ms"] > trial.numbers["ours_ms"] > 0
    assert tune.numbers["tune_ms"] > 0
