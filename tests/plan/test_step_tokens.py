"""How many tokens per step fill a GPU follows what was measured on it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_trials import BASE, SETTING, trial

from hpxfer.plan import hardware
from hpxfer.plan.hardware import device_of, filled, hardware_named, this_machine
from hpxfer.plan.packing import GPU_STEP_TOKENS, Device, gpu_share, stack_size
from hpxfer.plan.step_tokens import ACCEPT_FILE, measured_step_tokens
from hpxfer.trial.stack import Stack

GPU = "NVIDIA H200"


def is_it(name: str) -> bool:
    return name == GPU


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    (folder / ACCEPT_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def line(key: str, tokens: Any, rate: Any, gpu: str = GPU) -> dict[str, Any]:
    return {"of": key, "key": key, "step_tokens": tokens, "tokens_per_s": rate, "machine": {"gpu": gpu}}


RATES = (
    line("r-alone", 8192, 1.0e6),
    line("r-stack-8", 65536, 2.0e6),
    line("r-stack-planned-8k", 131072, 3.9e6),
    line("r-stack-64", 524288, 4.0e6),
)


def test_the_fewest_tokens_that_are_nearly_as_fast_as_the_best(tmp_path: Path) -> None:
    assert measured_step_tokens(is_it, written(tmp_path, *RATES)) == 131072
    # Measured again, the same stack counts anew.
    assert measured_step_tokens(is_it, written(tmp_path, *RATES, line("r-stack-8", 65536, 3.9e6))) == 65536


@pytest.mark.parametrize(
    "lines",
    [
        (),
        RATES[:1],
        tuple({**one, "machine": {"gpu": "NVIDIA L4"}} for one in RATES),
        (line("r-base-32k", 32768, 1e6), line("r-base-64k", 65536, 1e6)),
        (
            line("r-stack-8", "65536", 1e6),
            line("r-stack-64", 2**19, None),
            line("r-alone", 8192, -1.0),
            {"item": "env"},
        ),
    ],
    ids=["nothing", "one stack", "another GPU", "no stacks", "no numbers"],
)
def test_without_two_stacks_on_this_gpu_nothing_is_known(tmp_path: Path, lines: tuple[dict[str, Any], ...]) -> None:
    assert measured_step_tokens(is_it, written(tmp_path, *lines)) is None
    assert measured_step_tokens(is_it, tmp_path / "absent") is None


def test_a_damaged_file_stops_no_plan(tmp_path: Path) -> None:
    (tmp_path / ACCEPT_FILE).write_text('{"key": "r-al')
    assert measured_step_tokens(is_it, tmp_path) is None


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
