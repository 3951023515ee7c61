"""The CPU trainer's benchmark: what its rows say of given times, and that it measures a real case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench_cases import TINY

from hpxfer.bench import trainer_cpu
from hpxfer.bench.parts import rows_of
from hpxfer.bench.trainer_cpu import Measured, measure

TIMES = {
    "plain": (0.008, 0.010, 0.012),
    "stacked_1": (0.005, 0.005, 0.005),
    "stacked_8": (0.004, 0.004, 0.004),
    "stacked_16": (0.004, 0.002, 0.002),
    "products_and_attention": (0.001, 0.001, 0.001),
    "peak": (0.02, 0.02, 0.02),
}


def test_rows_of_given_times() -> None:
    found = Measured(times=TIMES, peak=100e9, flops=1e8, shares={"products": 0.7, "rest": 0.3})
    ratios, shares = trainer_cpu.rows_of(32, found)
    assert ratios.key == "ratio-32"
    assert ratios.value == pytest.approx(5.0)  # the median of 2, 5 and 6
    assert ratios.numbers["plain_ms"] == pytest.approx(10)
    assert ratios.numbers["ratio_at_8"] == pytest.approx(2.5)
    assert ratios.note == "ms a trial-step: plain 10.00, stacked 1 5.00, stacked 8 4.00, stacked 16 2.00"
    assert shares.key == "share-32"
    assert shares.value == pytest.approx(0.5)  # 1e8 FLOPs in 2 ms at 100 GFLOP/s
    assert shares.note == "products and attention alone, stock operators, reach 1.00; profile: products 70%, rest 30%"


def test_a_tiny_case_is_measured_every_way(tmp_path: Path) -> None:
    found = measure(replace(TINY, steps=100), tmp_path, rounds=2, peak_size=64)
    assert {name: len(measured) for name, measured in found.times.items()} == dict.fromkeys(TIMES, 2)
    assert found.peak > 0
    assert all(measured > 0 for times in found.times.values() for measured in times)
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_a_mixtral_is_measured_beside_the_nanogpt(tmp_path: Path) -> None:
    mixtral = trainer_cpu.mixtral_case(32)
    assert (mixtral.num_experts * mixtral.num_active, mixtral.kv_heads, mixtral.head_dim) == (16, 1, 8)
    cases = {"nanogpt": replace(TINY, steps=100), "mixtral": replace(mixtral, batch_tokens=64, steps=100)}
    times = trainer_cpu.beside(cases, tmp_path, rounds=1)
    assert times.keys() == {"nanogpt_plain", "nanogpt_stacked", "mixtral_plain", "mixtral_stacked"}
    assert all(one > 0 for found in times.values() for one in found)


def test_each_width_is_measured_alone_and_the_peak_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Measured(times=TIMES, peak=100e9, flops=1e8, shares={"products": 1.0})
    monkeypatch.setattr(trainer_cpu, "measure", lambda *given: made)
    turns = {f"{name}_{way}": TIMES["plain"] for name in ("nanogpt", "mixtral") for way in ("plain", "stacked")}
    turns["mixtral_stacked"] = TIMES["stacked_16"]
    monkeypatch.setattr(trainer_cpu, "beside", lambda *given: turns)
    monkeypatch.setattr(trainer_cpu, "matmul_size", lambda device: 64)
    rows = list(rows_of(trainer_cpu.parts((32, 128))))
    widths = ["ratio-32", "share-32", "ratio-128", "share-128"]
    assert [row.key for row in rows] == [*widths, "mixtral-32", "mixtral-128", "peak-cpu"]
    assert rows[4].value == pytest.approx(5.0)
    assert rows[4].numbers["nanogpt_ratio"] == pytest.approx(1.0)
    assert rows[-1].value == 100.0  # of the same rounds; no product was timed for it
