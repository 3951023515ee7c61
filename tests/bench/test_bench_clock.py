"""The benchmarks' clock: rounds, order, and what is timed."""

from __future__ import annotations

import time

import pytest
import torch

from hpxfer.bench import clock
from hpxfer.bench.clock import Job, interleaved, median, ratio

CPU = torch.device("cpu")


def test_every_round_runs_every_job_once_and_the_order_alternates() -> None:
    calls: list[str] = []
    jobs = {name: Job(run=lambda name=name: calls.append(name)) for name in "abc"}  # type: ignore[misc]
    times = interleaved(jobs, rounds=3, device=CPU)
    assert "".join(calls) == "cba" + "abc" + "cba" + "abc"
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_the_first_round_and_the_preparation_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    at = [0.0]
    monkeypatch.setattr(clock, "now", lambda device: at[0])
    took = iter([100.0, 6.0, 8.0])

    def wait(seconds: float) -> None:
        at[0] += seconds

    job = Job(prepare=lambda: wait(1000.0), run=lambda: wait(next(took)), count=2)
    assert interleaved({"a": job}, rounds=2, device=CPU) == {"a": (3.0, 4.0)}


def test_on_a_cpu_waiting_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is that of this process's work: time that passes without any is not seen."""
    monkeypatch.setattr(time, "process_time", lambda: 7.0)
    assert interleaved({"wait": Job(run=lambda: time.sleep(0.001))}, rounds=2, device=CPU) == {"wait": (0.0, 0.0)}


def test_a_ratio_is_taken_within_rounds() -> None:
    times = {"a": (2.0, 40.0, 9.0), "b": (1.0, 10.0, 3.0)}
    assert ratio(times, "a", "b") == 3.0
    assert median(times, "a") == 9.0
