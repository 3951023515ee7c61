"""How many tokens per step fill a GPU follows what was measured on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench_record import RECORD
from tiny_trials import BASE, SETTING, trial

from hpxfer.plan import hardware
from hpxfer.plan.hardware import device_of, filled, hardware_named, this_machine
from hpxfer.plan.packing import GPU_STEP_TOKENS, Device, gpu_share, stack_size
from hpxfer.plan.speeds import Row, append
from hpxfer.trial.stack import Stack

GPU = "NVIDIA H200"


def written(folder: Path, *rows: tuple[int, float], gpu: str = GPU, run: str = "r") -> Path:
    """Append rows (tokens per step of a stack, its M tokens/s) that were measured on a GPU."""
    made = tuple(
        Row(key=f"stack-{tokens}", what="", value=rate, unit="M tokens/s", numbers={"step_tokens": tokens})
        for tokens, rate in rows
    )
    append(replace(RECORD, device="cuda", machine={"gpu": gpu}, rows=made, run=run), folder)
    return folder


RATES = ((8192, 1.0), (65536, 2.0), (131072, 3.9), (524288, 4.0))


@pytest.mark.parametrize(
    ("rows", "gpu", "tokens"),
    [
        (RATES, GPU, 131072),
        ((*RATES, (65536, 3.9)), GPU, 65536),  # measured again, the same stack counts anew
        (RATES[:1], GPU, GPU_STEP_TOKENS),
        (RATES, "NVIDIA L4", GPU_STEP_TOKENS),
    ],
    ids=["four stacks", "again", "one stack", "another GPU"],
)
def test_the_fewest_tokens_that_are_nearly_as_fast_as_the_best(
    rows: tuple[tuple[int, float], ...], gpu: str, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in rows:
        written(tmp_path, row, gpu=gpu)
    written(tmp_path, (8192, 1.0), (2**20, 9.0), gpu="NVIDIA A10G")  # of another GPU, later
    monkeypatch.setattr(hardware, "BENCH", tmp_path)
    assert filled(Device(cuda=True, name=GPU)).step_tokens == tokens


def test_a_damaged_file_stops_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "BENCH", tmp_path)
    (tmp_path / "speeds.jsonl").write_text('{"key": 1}\n')
    assert filled(Device(cuda=True, name=GPU)).step_tokens == GPU_STEP_TOKENS


def test_the_planner_fills_stacks_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "BENCH", written(tmp_path, *RATES))
    for name, value in (("has_cuda", True), ("gpu_bytes", 2**37), ("gpu_name", GPU)):
        monkeypatch.setattr(hardware, name, lambda *_, value=value: value)
    device, few = this_machine(), replace(SETTING, batch_tokens=1024)
    assert device.step_tokens == 131072
    assert stack_size(BASE, few, device) == 128
    for name, tokens in (("h200", 131072), ("h100", GPU_STEP_TOKENS)):
        assert device_of(hardware_named(name), Device()).step_tokens == tokens
    assert filled(Device(cuda=True, name="H200")).step_tokens == 131072  # as Ray calls it
    assert filled(Device(cuda=True)).step_tokens == GPU_STEP_TOKENS
    assert filled(Device()) == Device()
    assumed = Device(cuda=True, memory_bytes=2**37, name=GPU)
    assert stack_size(BASE, few, assumed) == GPU_STEP_TOKENS // 1024 == 64


def test_a_stack_that_half_fills_the_gpu_gets_half_of_it() -> None:
    few = replace(SETTING, batch_tokens=GPU_STEP_TOKENS // 2)
    stack = Stack(trials=(trial(few),))
    assert gpu_share(stack, Device(cuda=True, memory_bytes=2**37)) == 1 / 2
    assert gpu_share(stack, Device(cuda=True, memory_bytes=2**37, step_tokens=4 * GPU_STEP_TOKENS)) == 1 / 8
