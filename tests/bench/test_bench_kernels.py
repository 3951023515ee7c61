"""The kernels' benchmark: its rows on a CPU, and that the GPU's run where there is one."""

from __future__ import annotations

import pytest
import torch

from hpxfer.bench import kernels_cpu, kernels_cuda
from hpxfer.bench.goals import CUDA_KERNELS, goals
from hpxfer.bench.parts import rows_of
from hpxfer.kernels.backend import TORCH
from hpxfer.plan.speeds import Row


def test_the_rows_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_cpu, "matmul_peak", lambda device: 1e11)
    rows = {row.key: row for row in rows_of(kernels_cpu.parts((32,), rounds=1, num_trials=2))}
    assert set(rows) == {"experts-32", "cross-entropy-cpu", "peak-cpu"}
    assert "experts-32" in {goal.key for goal in goals("kernels", "cpu")}
    experts = rows["experts-32"]
    assert set(experts.numbers) == {"own_ms", "loop_ms", "grouped_mm_ms", "dense_ms", "of_peak"}
    assert experts.value == pytest.approx(experts.numbers["loop_ms"] / experts.numbers["own_ms"])
    assert 0 < experts.numbers["of_peak"] < 100


def test_the_gpus_rows_made_small_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"TOKENS": 64, "LAYER_WIDTHS": (16, 32), "LOSS_ROWS": 8, "VOCAB": 40, "ADAM_TRIALS": 2, "ROUNDS": 1}
    for name, value in {
        **small,
        "ADAM_ELEMENTS": 64,
        "graphed": lambda run: run,
        "measured": lambda key, value, **rest: Row(key=key, what=key, value=value, unit="", **rest),
    }.items():
        monkeypatch.setattr(kernels_cuda, name, value)
    cpu = torch.device("cpu")
    rows = [row for width in (16, 32) for row in kernels_cuda.layer_rows(width, cpu, TORCH, 1e11)]
    rows += [kernels_cuda.cross_entropy_row(cpu, TORCH, 1e10), kernels_cuda.adamw_row(cpu, 1e10)]
    rows += [kernels_cuda.routing_row(cpu, TORCH)]
    assert [row.key for row in rows] == ["layer-16", "layer-32", "rate-32", "cross-entropy", "adamw", "routing"]
    assert all(row.value > 0 for row in rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_rows_on_cuda() -> None:
    rows = {row.key: row for row in rows_of(kernels_cuda.parts(torch.device("cuda")))}
    assert {goal.key for goal in CUDA_KERNELS} <= set(rows)
    assert all(row.value > 0 for row in rows.values())
