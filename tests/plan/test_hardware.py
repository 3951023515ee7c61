"""The hardware that a plan is priced on, records of what was measured on it, and the tokens that fill it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

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
    HARDWARE,
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
from hpxfer.plan.packing import (
    GPU_STEP_TOKENS,
    Device,
    Packer,
)

RECORD = Record(
    name="speeds",
    device="cpu",
    date="2026-11-21",
    command="hpxfer bench --device cpu",
    machine={"cpu": "Chip", "cores": 2, "threads": 1},
    versions={"torch": "2.13.0"},
    rows=(Row(key="a", what="an a", value=1.5, unit="x", note="why", numbers={"b_ms": 2.0}),),
)
H200 = hardware_named("h200")


def record(folder: Path, gpu: str = "NVIDIA H200", device: str = "cuda") -> None:
    params = count_params(BASE, SETTING).total / 1e6
    rows = tuple(
        Row(key=f"case-{k}", what="", value=1.0, unit="", numbers={"m_params": params * scale, "mfu": mfu})
        for k, (scale, mfu) in enumerate(((0.01, 0.5), (1.1, 0.4), (100.0, 0.2)))
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
    assert rate.trial_s(BASE, SETTING) == pytest.approx(flops / (0.4 * 800e12) + SETTING.steps * GPU_STEP_S)
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


def test_a_record_comes_back_as_it_went(tmp_path: Path) -> None:
    assert append(RECORD, tmp_path / "new" / "folder") == tmp_path / "new" / "folder" / "speeds.jsonl"
    assert latest(tmp_path / "new" / "folder", "speeds", "cpu") == RECORD
    assert (RECORD.row("a"), RECORD.row("b")) == (RECORD.rows[0], None)


def test_lines_of_another_version_are_history(tmp_path: Path) -> None:
    append(RECORD, tmp_path)
    old = {"date": "2025", "command": "hpxfer bench", "rows": [{"width": 32}]}
    with (tmp_path / "speeds.jsonl").open("a") as file:
        file.write(json.dumps(old) + "\n" + json.dumps({**RECORD.to_dict(), "version": 99}) + "\n")
    assert latest(tmp_path, "speeds", "cpu") == RECORD


@pytest.mark.parametrize("line", ["{", "[1]", '{"version": 2, "device": "cpu", "rows": []}', '{"version": 2}'])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    append(RECORD, tmp_path)
    path = tmp_path / "speeds.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(HpxferError, match=r"speeds.jsonl:2: must be a benchmark record, got "):
        latest(tmp_path, "speeds", "cpu")


def row_of_run(run: str, key: str, value: float, date: str = "2026-11-22") -> Record:
    row = replace(RECORD.rows[0], key=key, value=value)
    return replace(RECORD, run=run, date=date, command=f"hpxfer bench --device cpu --row {key}", rows=(row,))


def test_a_run_of_one_row_keeps_those_of_the_same_machine_and_versions(tmp_path: Path) -> None:
    for record in (row_of_run("r1", "a", 1.0, "2026-11-20"), row_of_run("r1", "b", 2.0, "2026-11-20")):
        append(record, tmp_path)
    whole = latest(tmp_path, "speeds", "cpu")
    assert whole is not None
    assert ({row.key: row.value for row in whole.rows}, whole.date) == ({"a": 1.0, "b": 2.0}, "2026-11-20")
    append(row_of_run("r2", "b", 5.0), tmp_path)
    append(row_of_run("r2", "c", 6.0), tmp_path)
    found = latest(tmp_path, "speeds", "cpu")
    assert found is not None
    assert {row.key: row.value for row in found.rows} == {"a": 1.0, "b": 5.0, "c": 6.0}
    assert found.date == "2026-11-20 to 2026-11-22"
    assert found.command == "hpxfer bench --device cpu"
    append(replace(row_of_run("r3", "d", 7.0), versions={"torch": "3"}), tmp_path)
    alone = latest(tmp_path, "speeds", "cpu")
    assert alone is not None
    assert [row.key for row in alone.rows] == ["d"]


def test_a_record_of_before_is_a_whole_run(tmp_path: Path) -> None:
    """A line of version 2 holds all rows of its run, so it keeps none of the run before."""
    append(row_of_run("r1", "z", 1.0), tmp_path)
    old = {**RECORD.to_dict(), "version": 2}
    del old["run"]
    with (tmp_path / "speeds.jsonl").open("a") as file:
        file.write(json.dumps(old) + "\n")
    assert latest(tmp_path, "speeds", "cpu") == RECORD


@pytest.mark.parametrize("name", ["trainer", "kernels", "moe", "sweep"])
def test_the_committed_records_are_read(name: str) -> None:
    folder = Path(__file__).parents[2] / "results" / "bench"
    last = json.loads((folder / f"{name}.jsonl").read_text().splitlines()[-1])
    found = latest(folder, name, "cpu")
    assert found is not None
    if last["version"] == 2:
        assert {**found.to_dict(), "version": 2, "run": ""} == {**last, "run": "", "rows": tuple(last["rows"])}


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
    (tmp_path / "speeds.jsonl").write_text('{"key": 1}\n')  # damaged: no plan is stopped
    assert filled(Device(cuda=True, name=GPU)).step_tokens == GPU_STEP_TOKENS


def test_the_planner_fills_stacks_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "BENCH", written(tmp_path, *RATES))
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
