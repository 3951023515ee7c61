"""The hardware that a plan is priced on: found by name, rated by what was measured on it, else by what is assumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_trials import BASE, SETTING

from hpxfer.errors import HpxferError
from hpxfer.host import machine
from hpxfer.model.cost import count_params, train_flops
from hpxfer.plan.hardware import (
    ASSUMED_MFU,
    CPU_CORE,
    CPU_FLOP_PER_S,
    CPU_S_PER_TOKEN,
    GPU_STEP_S,
    HARDWARE,
    OTHER_GPU,
    device_of,
    hardware_named,
    hardware_of,
    rate_of,
    this_machine,
)
from hpxfer.plan.packing import Device
from hpxfer.plan.speeds import Record, Row, append

H200 = hardware_named("h200")


def record(folder: Path, gpu: str = "NVIDIA H200", device: str = "cuda") -> None:
    params = count_params(BASE, SETTING).total / 1e6
    rows = tuple(
        Row(key=f"case-{k}", what="", value=1.0, unit="", numbers={"m_params": params * scale, "mfu": mfu})
        for k, (scale, mfu) in enumerate(((0.01, 0.5), (1.1, 0.2), (100.0, 0.4)))
    )
    append(
        Record(
            name="speeds",
            device=device,  # type: ignore[arg-type]
            date="2027-01-01",
            command="hpxfer bench",
            machine={"gpu": gpu, "cpu": "x", "cores": 1, "threads": 1},
            versions={},
            rows=(*rows, Row(key="peak-cuda", what="", value=800.0, unit="TFLOP/s")),
        ),
        folder,
    )


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


def test_names_are_unique_and_an_unknown_one_names_the_nearest() -> None:
    assert len({hardware.name for hardware in HARDWARE}) == len(HARDWARE)
    assert hardware_named("H100").name == "h100"
    with pytest.raises(HpxferError, match=r"--hardware: unknown hardware 'h300'; did you mean"):
        hardware_named("h300")


def test_a_cpu_is_rated_by_what_was_measured() -> None:
    rate = rate_of(CPU_CORE, "float32")
    seconds = SETTING.steps * SETTING.batch_tokens * CPU_S_PER_TOKEN + train_flops(BASE, SETTING) / CPU_FLOP_PER_S
    assert rate.trial_s(BASE, SETTING) == rate.trial_s(BASE, SETTING, num_trials=8) == seconds


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_gpu_is_rated_by_an_assumption_that_says_so(precision: str, tmp_path: Path) -> None:
    rate = rate_of(H200, precision, tmp_path)
    assert rate.source.startswith("assumed: ")
    assert rate.source.endswith("unmeasured")
    from dataclasses import replace

    setting = replace(SETTING, precision=precision)
    assert H200.peak is not None
    whole = train_flops(BASE, setting) / (H200.peak[precision] * ASSUMED_MFU[precision])
    for num_trials in (1, 8):
        assert rate.trial_s(BASE, setting, num_trials) == whole + SETTING.steps * GPU_STEP_S / num_trials
    assert "taken for an NVIDIA H200" in rate_of(OTHER_GPU, precision, tmp_path).source


def test_a_benchmark_on_such_a_gpu_goes_before_the_assumption(tmp_path: Path) -> None:
    record(tmp_path)
    rate = rate_of(H200, "bfloat16", tmp_path)
    assert rate.source == "measured by `hpxfer bench`, 2027-01-01"
    flops = train_flops(BASE, SETTING)
    # The case of the nearest size counts.
    assert rate.trial_s(BASE, SETTING) == pytest.approx(flops / (0.2 * 800e12) + SETTING.steps * GPU_STEP_S)
    assert rate_of(H200, "float32", tmp_path).source.startswith("assumed")  # it was measured in bfloat16
    assert rate_of(hardware_named("h100"), "bfloat16", tmp_path).source.startswith("assumed")


def test_a_record_of_another_gpu_or_a_broken_one_says_nothing(tmp_path: Path) -> None:
    record(tmp_path, "NVIDIA L4")
    assert rate_of(H200, "bfloat16", tmp_path).source.startswith("assumed")
    (tmp_path / "speeds.jsonl").write_text("{broken\n")
    assert rate_of(H200, "bfloat16", tmp_path).source.startswith("assumed")


def test_named_hardware_is_planned_for_as_often_as_there_are_gpus() -> None:
    cpu, cluster = Device(num_cpus=8, host_bytes=2**35), Device(cuda=True, num_gpus=4, memory_bytes=1)
    assert device_of(H200, cpu).num_gpus == 1
    assert (device_of(H200, cluster).num_gpus, device_of(H200, cluster).memory_bytes) == (4, H200.memory_bytes)
    assert device_of(CPU_CORE, cpu) == cpu
    assert not device_of(CPU_CORE, cluster).cuda


def test_this_machine_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = this_machine("cpu")
    assert (found.cuda, found.memory_bytes, found.name, found.num_cpus) == (False, None, None, machine.num_cpus())
