"""The GPU trainer's benchmark, on a CPU with a tiny case: rates between runs that differ in steps alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench_cases import TINY

from hpxfer.bench import trainer_cuda
from hpxfer.bench.cases import trials
from hpxfer.bench.goals import CUDA_TRAINER
from hpxfer.bench.parts import rows_of
from hpxfer.bench.trainer_cuda import Rate, progress, rate, steady
from hpxfer.errors import HpxferError
from hpxfer.train import trainer
from hpxfer.trial.stack import Stack

CPU = torch.device("cpu")


def test_the_rate_of_a_tiny_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "PROGRESS_S", 0.01)
    found = rate(replace(TINY, steps=100), tmp_path, CPU, trials_at_once=2, determinism="strict")
    assert found.tokens_per_s > 0
    assert found.flop_per_s / found.tokens_per_s > 6 * TINY.width * TINY.vocab_size
    assert found.params > 0


def test_a_rate_leaves_out_the_start_and_the_remainder() -> None:
    marks = [(100.0, 5), (101.0, 40), (102.0, 20), (104.0, 60), (104.5, 10**9)]
    assert steady(marks) == 30.0


def test_a_run_too_short_for_a_rate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match="needs 3 intervals between reports of progress, got 0; give more steps"):
        rate(TINY, tmp_path, CPU)


def test_a_diverging_trial_has_no_rate(tmp_path: Path) -> None:
    (member,) = trials(replace(TINY, steps=40), 1, tmp_path)
    wild = replace(member, hps=replace(member.hps, lr=1e6))
    with pytest.raises(HpxferError, match=r"must finish, got \['diverged'\]"):
        progress(Stack(trials=(wild,)), CPU, None)


def test_the_rows_are_those_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Rate(tokens_per_s=2e6, flop_per_s=4e14, params=10**9)
    monkeypatch.setattr(trainer_cuda, "rate", lambda *args, **options: made)
    monkeypatch.setattr(trainer_cuda, "matmul_peak", lambda device: 8e14)
    monkeypatch.setattr(trainer_cuda, "copy_peak", lambda device: 4e12)
    rows = {row.key: row for row in rows_of(trainer_cuda.parts(torch.device("cuda")))}
    assert {goal.key: goal.unit for goal in CUDA_TRAINER} == {
        key: row.unit for key, row in rows.items() if not key.endswith("-cuda")
    }
    assert rows["base-32k"].value == 2.0
    assert rows["large-mfu"].value == 0.5
    assert rows["twin-64k"].numbers["mfu_of_the_twin"] == 0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_rate_on_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "PROGRESS_S", 0.01)
    assert rate(replace(TINY, steps=400), tmp_path, torch.device("cuda")).tokens_per_s > 0
