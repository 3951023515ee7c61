"""The hardware that a plan is priced on, records of what was measured on it, and the tokens that fill it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_trials import BASE, SETTING

from hpxfer.errors import HpxferError
from hpxfer.model.cost import count_params, train_flops
from hpxfer.plan import hardware
from hpxfer.plan.hardware import (
    ASSUMED_MFU,
    CPU_CORE,
    CPU_FLOP_PER_S,
    CPU_S_PER_TOKEN,
    GPU_STEP_S,
    OTHER_GPU,
    Record,
    Row,
    append,
    device_of,
    filled,
    hardware_named,
    hardware_of,
    latest,
    rate_of,
    this_machine,
)
from hpxfer.plan.packing import GPU_STEP_TOKENS, Device, Packer

H200, GPU = hardware_named("h200"), "NVIDIA H200"
RECORD = Record(
    name="speeds",
    device="cpu",
    date="2026-11-21",
    command="hpxfer bench --device cpu",
    machine={"cpu": "Chip", "cores": 2, "threads": 1},
    versions={"torch": "2.13.0"},
    rows=(Row(key="a", what="an a", value=1.5, unit="x", note="why", numbers={"b_ms": 2.0}),),
)


def row(key: str, value: float = 1.0, **numbers: float) -> Row:
    return Row(key=key, what="", value=value, unit="", numbers=numbers)


def on_gpu(folder: Path, *rows: Row, gpu: str = GPU, **changed: Any) -> None:
    append(replace(RECORD, device="cuda", machine={**RECORD.machine, "gpu": gpu}, rows=rows, **changed), folder)


def measured(folder: Path, gpu: str = GPU) -> None:
    params = count_params(BASE, SETTING).total / 1e6
    cases = enumerate(((0.01, 0.5), (1.1, 0.4), (100.0, 0.2)))
    rows = [row(f"case-{k}", m_params=params * scale, mfu=mfu) for k, (scale, mfu) in cases]
    on_gpu(folder, *rows, row("peak-cuda", 800.0), gpu=gpu)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10G", "gpu"),
        ("Tesla T4", "gpu"),
        (None, "gpu"),
    ],
)
def test_a_gpu_is_known_by_the_name_that_cuda_gives_it(name: str | None, found: str) -> None:
    assert hardware_of(Device(cuda=True, name=name)).name == found
    assert hardware_of(Device(cuda=False, name=name)) == CPU_CORE


def test_an_unknown_name_names_the_nearest() -> None:
    assert hardware_named("H100").name == "h100"
    with pytest.raises(HpxferError, match=r"--hardware: unknown hardware 'h300'; did you mean"):
        hardware_named("h300")


def test_a_cpu_is_rated_by_what_was_measured() -> None:
    rate = rate_of(CPU_CORE, "float32")
    seconds = SETTING.steps * SETTING.batch_tokens * CPU_S_PER_TOKEN + train_flops(BASE, SETTING) / CPU_FLOP_PER_S
    assert rate.trial_s(BASE, SETTING) == rate.trial_s(BASE, SETTING, num_trials=8) == seconds


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_gpu_is_rated_by_an_assumption_that_says_so(precision: str, tmp_path: Path) -> None:
    rate, setting = rate_of(H200, precision, tmp_path), replace(SETTING, precision=precision)
    assert rate.source.startswith("assumed: ")
    assert rate.source.endswith("unmeasured")
    assert H200.peak is not None
    whole = train_flops(BASE, setting) / (H200.peak[precision] * ASSUMED_MFU[precision])
    for num_trials in (1, 8):
        assert rate.trial_s(BASE, setting, num_trials) == whole + SETTING.steps * GPU_STEP_S / num_trials
    assert "taken for an NVIDIA H200" in rate_of(OTHER_GPU, precision, tmp_path).source


def test_a_benchmark_on_such_a_gpu_goes_before_the_assumption(tmp_path: Path) -> None:
    measured(tmp_path)
    rate = rate_of(H200, "bfloat16", tmp_path)
    assert rate.source == f"measured by `hpxfer bench`, {RECORD.date}"
    # The case of the nearest size counts.
    flops = train_flops(BASE, SETTING)
    assert rate.trial_s(BASE, SETTING) == pytest.approx(flops / (0.4 * 800e12) + SETTING.steps * GPU_STEP_S)
    assert rate_of(H200, "float32", tmp_path).source.startswith("assumed")  # it was measured in bfloat16
    assert rate_of(hardware_named("h100"), "bfloat16", tmp_path).source.startswith("assumed")
    (tmp_path / "speeds.jsonl").write_text("{broken\n")
    assert rate_of(H200, "bfloat16", tmp_path).source.startswith("assumed")


def test_named_hardware_is_planned_for_as_often_as_there_are_gpus() -> None:
    cpu, cluster = Device(num_cpus=8, host_bytes=2**35), Device(cuda=True, num_gpus=4, memory_bytes=1)
    assert device_of(H200, cpu).num_gpus == 1
    assert (device_of(H200, cluster).num_gpus, device_of(H200, cluster).memory_bytes) == (4, H200.memory_bytes)
    assert device_of(CPU_CORE, cpu) == cpu
    assert not device_of(CPU_CORE, cluster).cuda


def test_a_record_comes_back_as_it_went(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert append(RECORD, folder) == folder / "speeds.jsonl"
    append(replace(RECORD, device="cuda"), folder)
    assert latest(folder, "speeds", "cpu") == RECORD
    assert latest(folder, "kernels", "cpu") is None
    assert (RECORD.row("a"), RECORD.row("b")) == (RECORD.rows[0], None)


def written(folder: Path, *lines: Mapping[str, Any] | str) -> None:
    with (folder / "speeds.jsonl").open("a") as file:
        file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def test_lines_of_another_version_are_history(tmp_path: Path) -> None:
    append(RECORD, tmp_path)
    old = {"date": "2025", "command": "hpxfer bench", "rows": [{"width": 32}]}
    written(tmp_path, old, {**RECORD.to_dict(), "version": 99})
    assert latest(tmp_path, "speeds", "cpu") == RECORD


@pytest.mark.parametrize("line", ["{", "[1]", '{"version": 2, "device": "cpu", "rows": []}', '{"version": 2}'])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    append(RECORD, tmp_path)
    written(tmp_path, line)
    with pytest.raises(HpxferError, match=r"speeds.jsonl:2: must be a benchmark record, got "):
        latest(tmp_path, "speeds", "cpu")


def test_a_run_of_one_row_keeps_those_of_the_same_machine_and_versions(tmp_path: Path) -> None:
    def found(*runs: tuple[str, str, float, str], **changed: Any) -> tuple[dict[str, float], str, str]:
        for run, key, value, date in runs:
            command = f"hpxfer bench --device cpu --row {key}"
            append(replace(RECORD, run=run, date=date, command=command, rows=(row(key, value),), **changed), tmp_path)
        record = latest(tmp_path, "speeds", "cpu")
        assert record is not None
        return {each.key: each.value for each in record.rows}, record.date, record.command.partition(" --row ")[0]

    command = "hpxfer bench --device cpu"
    assert found(("r1", "a", 1.0, "20"), ("r1", "b", 2.0, "20")) == ({"a": 1.0, "b": 2.0}, "20", command)
    of_both = ({"a": 1.0, "b": 5.0, "c": 6.0}, "20 to 22", command)
    assert found(("r2", "b", 5.0, "22"), ("r2", "c", 6.0, "22")) == of_both
    assert found(("r3", "d", 7.0, "23"), versions={"torch": "3"}) == ({"d": 7.0}, "23", command)
    # A line of version 2 holds all rows of its run, so it keeps none of the run before.
    old = {**RECORD.to_dict(), "version": 2}
    del old["run"]
    written(tmp_path, old)
    assert latest(tmp_path, "speeds", "cpu") == RECORD


@pytest.mark.parametrize("name", ["trainer", "kernels", "moe", "sweep"])
def test_the_committed_records_are_read(name: str) -> None:
    assert latest(Path(__file__).parents[2] / "results" / "bench", name, "cpu") is not None


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
    for step_tokens, rate in rows:
        on_gpu(tmp_path, row(f"stack-{step_tokens}", rate, step_tokens=step_tokens), gpu=gpu, run="r")
    other = (row("stack-1", 1.0, step_tokens=8192), row("stack-2", 9.0, step_tokens=2**20))
    on_gpu(tmp_path, *other, gpu="NVIDIA A10G", run="r")  # of another GPU, later
    monkeypatch.setattr(hardware, "BENCH", tmp_path)
    assert filled(Device(cuda=True, name=GPU)).step_tokens == tokens
    (tmp_path / "speeds.jsonl").write_text('{"key": 1}\n')  # damaged: no plan is stopped
    assert filled(Device(cuda=True, name=GPU)).step_tokens == GPU_STEP_TOKENS


def test_the_planner_fills_stacks_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu(tmp_path, *(row(f"stack-{tokens}", rate, step_tokens=tokens) for tokens, rate in RATES))
    monkeypatch.setattr(hardware, "BENCH", tmp_path)
    for name, value in (("has_cuda", True), ("gpu_bytes", 2**37), ("gpu_name", GPU)):
        monkeypatch.setattr(hardware, name, lambda *_, value=value: value)
    device, few = this_machine(), replace(SETTING, batch_tokens=1024)
    assert device.step_tokens == 131072
    assert Packer(device=device).size(BASE, few) == 128
    for name, tokens in (("h200", 131072), ("h100", GPU_STEP_TOKENS)):
        assert device_of(hardware_named(name), Device()).step_tokens == tokens
    assert filled(Device(cuda=True, name="H200")).step_tokens == 131072  # as Ray calls it
    assert filled(Device(cuda=True)).step_tokens == GPU_STEP_TOKENS
    assert filled(Device()) == Device()
    assumed = Device(cuda=True, memory_bytes=2**37, name=GPU)
    assert Packer(device=assumed).size(BASE, few) == GPU_STEP_TOKENS // 1024 == 64
