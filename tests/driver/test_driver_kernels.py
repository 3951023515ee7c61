"""A run whose device cannot have the kernels is refused before it writes anything. A plan says so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from command_line import hpxfer
from driver_cases import Made, trained
from tiny import write_tiny

from hpxfer.bench.cases import write_tokens
from hpxfer.driver import prepare, run
from hpxfer.driver import prepared as driver_job
from hpxfer.errors import HpxferError
from hpxfer.plan.packing import Device

H100 = Device(cuda=True, memory_bytes=79 * 2**30, num_cpus=8, num_gpus=1, name="NVIDIA H100 80GB HBM3")
CPU = Device(num_cpus=2, host_bytes=2**34)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter, which runs on a CPU, is for the tests of kernels only."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def sweep_on(
    monkeypatch: pytest.MonkeyPatch, folder: Path, device: Device, kernels: str, *, installed: bool, training: str = ""
) -> Path:
    """Return a sweep file on a machine with a device, with or without triton."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: (object() if installed else None) if name == "triton" else found(name)
    )
    monkeypatch.setattr(driver_job, "this_machine", lambda asked: CPU if asked == "cpu" else device)
    edits = ("executor: local, workers: 2", f"executor: local, workers: 2, kernels: {kernels}")
    return write_tiny(folder, edits, ("training: {", f"training: {{{training}"))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("device", "kernels", "installed", "training", "text"),
    [
        (H100, "auto", False, "", r"kernels: auto means .* triton is not installed; pip install 'hpxfer\[triton\]'"),
        (H100, "triton", False, "", "kernels: triton means the Triton kernels on CUDA"),
        (H100, "torch", True, "determinism: strict, ", "determinism: strict on CUDA needs the Triton kernels"),
        (CPU, "triton", True, "", "kernels: triton needs a CUDA device .* the device is cpu; give kernels: auto"),
    ],
)
def test_a_run_is_refused_before_it_writes(
    device: Device,
    kernels: str,
    installed: bool,
    training: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    file = sweep_on(monkeypatch, tmp_path, device, kernels, installed=installed, training=training)
    with pytest.raises(HpxferError, match=rf"{file.name}:\d+: (resources|training)\.{text}"):
        run(file, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()
    plan = prepare(file, results=tmp_path / "results").plan
    assert [line for line in plan.cautions if "the Triton kernels" in line or "triton needs" in line]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("device", "kernels", "cautions"),
    [
        (H100, "auto", []),
        (H100, "triton", []),
        (H100, "torch", ["resources.kernels: torch is a debugging aid on CUDA"]),
        (CPU, "auto", []),
        (CPU, "torch", []),
    ],
)
def test_others_run_and_a_plan_names_the_debugging_aid(
    device: Device, kernels: str, cautions: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = sweep_on(monkeypatch, tmp_path, device, kernels, installed=True)
    job = prepare(file, results=tmp_path)
    found = [line for line in job.plan.cautions if "kernels" in line]
    assert [line[: len(start)] for line, start in zip(found, cautions, strict=True)] == cautions
    made = Made()
    run(job, executor=made)
    assert trained(made) == len(job.missing)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("vocab", "determinism", "precision", "device", "said"),
    [
        (50257, "strict", "bfloat16", H100, "pad the vocabulary to 50260"),
        (50259, "strict", "auto", H100, "pad the vocabulary to 50260"),
        (50260, "strict", "bfloat16", H100, None),
        (50257, "fast", "bfloat16", H100, None),
        (50257, "strict", "float32", H100, None),
        (50257, "strict", "float32", CPU, None),
    ],
)
def test_a_vocabulary_that_is_slow_in_strict_kernels(
    vocab: int,
    determinism: str,
    precision: str,
    device: Device,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    write_tokens(tmp_path / "a.bin", 10_000, 256)
    training = f"determinism: {determinism}, "
    file = sweep_on(monkeypatch, tmp_path, device, "auto", installed=True, training=training)
    data = f"data: {{source: tokens:{tmp_path / 'a.bin'}, vocab_size: {vocab}}}\nprecision: {precision}"
    file.write_text(re.sub(r"data: .*", data, file.read_text()))
    found = [line for line in prepare(file, results=tmp_path).plan.cautions if "readout" in line]
    assert [line.rpartition("; ")[2].partition(", or")[0] for line in found] == ([said] if said else [])


@pytest.mark.usefixtures("compiled")
def test_the_nodes_of_a_cluster_may_have_what_this_machine_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = sweep_on(monkeypatch, tmp_path, H100, "auto", installed=False)
    monkeypatch.setattr(driver_job, "_device", lambda resources, address: H100)
    assert not [line for line in prepare(file, results=tmp_path, address="far:1").plan.cautions if "Triton" in line]


@pytest.mark.usefixtures("compiled")
def test_the_command_says_file_line_and_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_tiny(tmp_path, ("executor: local, workers: 2", "executor: local, workers: 2, kernels: triton"))
    code, _, err = hpxfer(capsys, "run", file, "--results", tmp_path / "results", "--yes")
    assert code == 2
    assert f"{file}:14: resources.kernels: triton needs a CUDA device" in err
    assert err.count("triton needs") == 1
    assert not (tmp_path / "results").exists()
