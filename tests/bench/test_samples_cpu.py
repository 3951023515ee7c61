"""The MLP mixture's benchmark: its rows of given times, and that its plain ways train the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hpxfer.bench import samples_cpu
from hpxfer.bench.parts import rows_of
from hpxfer.bench.plain_mlp import PlainMLPRun
from hpxfer.bench.samples_cpu import CASES, SampleCase, measure, trials_of
from hpxfer.data import SampleData
from hpxfer.model.cost import flops_per_token
from hpxfer.train.device import setup_for
from hpxfer.train.step import TrainStep
from hpxfer.trial.stack import Stack

TINY = SampleCase(width=16, num_experts=4, expert_width=8, inputs=12, classes=7, batch=10, repeats=1)
TIMES = {
    "stacked": (0.001, 0.002, 0.001),
    "batched": (0.002, 0.006, 0.003),
    "listed": (0.005, 0.010, 0.006),
    "peak": (0.01, 0.01, 0.01),
}


@pytest.mark.parametrize("listed", [False, True])
def test_the_plain_ways_train_the_same_model(tmp_path: Path, listed: bool) -> None:
    step = TrainStep(Stack(trials=trials_of(TINY, 3, tmp_path)), setup_for("cpu"))
    state, member = step.state, 2
    assert isinstance(state.data, SampleData)
    run = PlainMLPRun(state.stack.trials[member], state, listed=listed, member=member)
    for number in range(4):
        inputs, targets = map(torch.from_numpy, state.data.train_batch(0, number))
        step.update(*step.gradients(number))
        assert run.step(inputs, targets) == pytest.approx(float(step.monitor.losses[number, member]), rel=1e-4)


def test_the_flops_are_those_of_the_model(tmp_path: Path) -> None:
    for case in (TINY, *CASES.values()):
        (trial,) = trials_of(case, 1, tmp_path)
        assert case.flops == flops_per_token(trial.shape, trial.setting) * case.batch


def test_a_tiny_case_is_measured_every_way() -> None:
    times = measure(TINY, 2, 64)
    assert {name: len(found) for name, found in times.items()} == dict.fromkeys(TIMES, 2)
    assert all(one > 0 for found in times.values() for one in found)


def test_rows_of_given_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_cpu, "measure", lambda *given: TIMES)
    monkeypatch.setattr(samples_cpu, "matmul_size", lambda device: 1000)
    monkeypatch.setattr(samples_cpu, "keep_memory", lambda: None)
    rows = {row.key: row for row in rows_of(samples_cpu.parts())}
    assert list(rows) == ["samples-128", "samples-list-128", "samples-share-128", "samples-32"]
    assert [rows[key].value for key in ("samples-128", "samples-list-128", "samples-32")] == pytest.approx([3, 5, 3])
    # 200 GFLOP/s of the product; the median round takes 1 ms a trial-step.
    assert rows["samples-share-128"].value == pytest.approx(CASES[128].flops / 1e-3 / 200e9)
    assert rows["samples-128"].note == "ms a trial-step: stacked 1.000, batched 3.000, listed 6.000"
    assert replace(CASES[32], repeats=1).flops == CASES[32].flops
