"""Precision and kernels are decided once, from the device that will train; a folder goes on with what it began with."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import hpxfer
from fixture_types import Capsys, Patch
from made_executors import InProcess, Made, trained
from tiny import write_tiny

from hpxfer.bench.cases import write_tokens
from hpxfer.coordinates.checking import check
from hpxfer.driver import prepare, run
from hpxfer.driver import prepared as driver_job
from hpxfer.driver.prepared import begun_with
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import More, OnEvent, Trains
from hpxfer.plan.packing import Device
from hpxfer.results import load_results
from hpxfer.spec import load_sweep
from hpxfer.store import Store
from hpxfer.trial import DataRef, Setting, setting_of

H100 = Device(cuda=True, memory_bytes=79 * 2**30, num_cpus=8, num_gpus=1, name="NVIDIA H100 80GB HBM3")
CPU = Device(num_cpus=2, host_bytes=2**34)
SEEDS = ("seeds: 2", "seeds: 1")


@pytest.fixture
def device(monkeypatch: Patch) -> Any:
    """Return what makes this machine, as the planner sees it, a device."""

    def use(found: Device) -> None:
        monkeypatch.setattr(driver_job, "this_machine", lambda asked: found if asked == "auto" else CPU)

    return use


def sweep_of(folder: Path, precision: str, *edits: tuple[str, str]) -> Path:
    return write_tiny(folder, SEEDS, ("grid:", f"precision: {precision}\ngrid:"), *edits)


def ids(folder: Path, precision: str, **given: Any) -> set[str]:
    """Return the ids of the trials that a run would train."""
    return {trial.id for trial in prepare(sweep_of(folder, precision), **given).missing}


@pytest.mark.parametrize(("found", "value"), [(CPU, "float32"), (H100, "bfloat16")], ids=["cpu", "cuda"])
def test_the_device_decides_before_any_id_is_made(found: Device, value: str, device: Any, tmp_path: Path) -> None:
    device(found)
    job = prepare(sweep_of(tmp_path, "auto"), results=tmp_path)
    assert (job.spec.precision, job.expansion.setting.precision, job.plan.precision) == (value,) * 3
    assert ids(tmp_path, "auto", results=tmp_path) == ids(tmp_path, value, results=tmp_path)
    other = "float32" if value == "bfloat16" else "bfloat16"
    assert not ids(tmp_path, "auto", results=tmp_path) & ids(tmp_path, other, results=tmp_path)
    plain = prepare(write_tiny(tmp_path), results=tmp_path)  # the default stays, on every device
    assert (plain.spec.precision, plain.plan.chosen.line()) == ("float32", None)
    on_cpus = sweep_of(tmp_path, "auto", ("workers: 2", "workers: 2, device: cpu"))
    assert prepare(on_cpus, results=tmp_path).spec.precision == "float32"


def test_no_setting_has_auto(tmp_path: Path) -> None:
    spec = load_sweep(sweep_of(tmp_path, "auto"))
    data = DataRef(digest="d", tokenizer="ascii", vocab_size=128)
    with pytest.raises(HpxferError, match="precision: must be float32 or bfloat16 before trials are made, got auto"):
        setting_of(spec, data)
    given = vars(setting_of(spec.model_copy(update={"precision": "float32"}), data))
    with pytest.raises(HpxferError, match="precision: must be float32 or bfloat16"):
        Setting(**{**given, "precision": "auto"})


@pytest.mark.slow
def test_everything_after_the_plan_sees_the_value(device: Any, tmp_path: Path, capsys: Capsys) -> None:
    device(H100)
    sweep, folder = sweep_of(tmp_path, "auto"), tmp_path / "tiny"
    planned = json.loads(hpxfer(capsys, "plan", sweep, "--results", tmp_path, "--trials", "--json")[1])
    assert planned["precision"] == "bfloat16"
    executor = InProcess()
    run(sweep, results=tmp_path, executor=executor)
    assert {trial.setting.precision for stack in executor.given for trial in stack.trials} == {"bfloat16"}
    found = load_results(folder)
    assert {trial["trial_id"] for trial in planned["trials"]} == set(found.trials["trial_id"])
    assert set(found.trials["precision"]) == {"bfloat16"}
    assert load_sweep(folder / "sweep.yaml").precision == "bfloat16"
    assert "auto" not in (folder / "sweep.yaml").read_text().split("precision")[1].splitlines()[0]
    for command in (("report", folder), ("recipe", "write", folder), ("explain", "--sweep", sweep)):
        code, _, err = hpxfer(capsys, *command)
        assert code == 0, err
    assert "precision: bfloat16" in (folder / "recipe.yaml").read_text()
    assert prepare(folder / "sweep.yaml").missing == ()
    reusing = prepare(sweep, results=tmp_path / "other", reuse=[folder])
    assert (reusing.missing, len(reusing.reuse.wanted)) == ((), len(found.trials))


def test_a_check_trains_on_the_cpu(tmp_path: Path) -> None:
    spec = load_sweep(sweep_of(tmp_path, "auto"))
    assert check("completep-moe", sweep=spec, points=(16, 24, 32, 40), steps=2, seeds=1).axes


def test_a_folder_goes_on_with_what_it_began_with(device: Any, tmp_path: Path, capsys: Capsys) -> None:
    """The first run dies in the middle, on a GPU; the next one is on a CPU."""
    sweep = sweep_of(tmp_path, "auto", ("workers: 2", "workers: 2, stack_size: 2"))
    device(H100)
    with pytest.raises(KeyboardInterrupt):
        run(sweep, results=tmp_path, executor=Made(stop_after=2))
    done = Store.open(tmp_path / "tiny", write=False).done_ids()
    assert len(done) == 4
    device(CPU)
    code, out, err = hpxfer(capsys, "plan", sweep, "--results", tmp_path)
    assert code == 0
    where = f"{tmp_path}/tiny"
    assert f"precision: auto is bfloat16, with which {where} began; it is part of the trials' ids" in out
    assert (
        f"warning: precision: {where} began with bfloat16 and goes on with it; this device (CPU) would choose " in err
    )
    rest = Made()
    found = run(sweep, results=tmp_path, executor=rest)
    assert trained(rest) == len(found.trials) - 4
    assert set(found.trials["precision"]) == {"bfloat16"}
    device(H100)
    assert "would choose" not in hpxfer(capsys, "plan", sweep, "--results", tmp_path)[2]


def test_a_run_that_was_killed_before_its_first_trial_has_begun(device: Any, tmp_path: Path) -> None:
    device(H100)
    with pytest.raises(KeyboardInterrupt):
        run(sweep_of(tmp_path, "auto"), results=tmp_path, executor=Made(stop_after=0))
    device(CPU)
    assert begun_with(tmp_path / "tiny") == "bfloat16"
    assert prepare(sweep_of(tmp_path, "auto"), results=tmp_path).spec.precision == "bfloat16"


@pytest.mark.parametrize("harm", ["none", "cut", "auto", "gone"])
def test_a_damaged_sweep_file_does_not_change_the_precision(harm: str, device: Any, tmp_path: Path) -> None:
    device(H100)
    run(sweep_of(tmp_path, "auto"), results=tmp_path, executor=Made())
    path = tmp_path / "tiny" / "sweep.yaml"
    text = path.read_text()
    if harm == "gone":
        path.unlink()
    elif harm == "cut":
        path.write_text(text[: text.index("precision:")])
    elif harm == "auto":
        path.write_text(text.replace("precision: bfloat16", "precision: auto"))
    device(CPU)
    job = prepare(sweep_of(tmp_path, "auto"), results=tmp_path)
    assert (job.spec.precision, job.missing) == ("bfloat16", ())


def test_a_precision_that_is_named_wins_over_the_folder(device: Any, tmp_path: Path) -> None:
    device(H100)
    run(sweep_of(tmp_path, "auto"), results=tmp_path, executor=Made())
    named = prepare(sweep_of(tmp_path, "float32"), results=tmp_path)
    assert named.spec.precision == "float32"
    assert named.missing
    assert not any(text.startswith("precision:") for text in named.plan.cautions)
    run(sweep_of(tmp_path, "float32"), results=tmp_path, executor=Made())
    assert prepare(sweep_of(tmp_path, "auto"), results=tmp_path).spec.precision == "float32"


class Meanwhile:
    """An executor that trains nothing; by its turn it is too late."""

    def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
        raise AssertionError("nothing may be trained")


def test_two_runs_that_begin_at_once_train_in_one_precision(device: Any, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "auto")
    device(CPU)
    late = prepare(sweep, results=tmp_path)
    device(H100)
    run(sweep, results=tmp_path, executor=Made())
    with pytest.raises(HpxferError, match=r"has begun with bfloat16 in the meantime.*give the same command again"):
        run(late, executor=Meanwhile())
    assert load_sweep(tmp_path / "tiny" / "sweep.yaml").precision == "bfloat16"


def test_other_hardware_is_priced_in_its_precision_and_changes_no_id(
    device: Any, tmp_path: Path, capsys: Capsys
) -> None:
    device(CPU)
    sweep = sweep_of(tmp_path, "auto")

    def planned(*options: str) -> tuple[dict[str, Any], str]:
        command = ("plan", sweep, "--results", tmp_path / "results", *options)
        return json.loads(hpxfer(capsys, *command, "--trials", "--json")[1]), hpxfer(capsys, *command)[1]

    here, there = planned(), planned("--hardware", "h100")
    assert here[0]["trials"] == there[0]["trials"]
    assert (here[0]["precision"], there[0]["precision"]) == ("float32", "bfloat16")
    assert "bfloat16 peak of an NVIDIA H100" in there[0]["rate_from"]
    assert there[0]["precision_from"]["value"] == "float32"
    assert "precision: auto is float32, chosen by this device (CPU); it is part of the trials' ids" in here[1]
    assert "On NVIDIA H100 SXM it is bfloat16: " in there[1]
    assert "gives the trials other ids than a run here" in there[1]
    run(sweep, results=tmp_path / "results", executor=Made())
    begun = planned("--hardware", "h100")
    assert begun[0]["precision"] == "float32"
    assert f"auto is float32, with which {tmp_path}/results/tiny began" in begun[1]
    assert "on NVIDIA H100 SXM it is float32, too" in begun[1]


@pytest.fixture
def compiled(monkeypatch: Patch) -> None:
    """Triton's interpreter, which runs on a CPU, is for the tests of kernels only."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def sweep_on(
    monkeypatch: Patch, folder: Path, device: Device, kernels: str, *, installed: bool, training: str = ""
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
    device: Device, kernels: str, installed: bool, training: str, text: str, monkeypatch: Patch, tmp_path: Path
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
    device: Device, kernels: str, cautions: list[str], monkeypatch: Patch, tmp_path: Path
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
    ("vocab", "determinism", "precision", "said"),
    [
        (50257, "strict", "bfloat16", True),
        (50259, "strict", "auto", True),
        (50260, "strict", "bfloat16", False),
        (50257, "fast", "bfloat16", False),
        (50257, "strict", "float32", False),
    ],
)
def test_a_vocabulary_that_is_slow_in_strict_kernels(
    vocab: int, determinism: str, precision: str, said: bool, monkeypatch: Patch, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "a.bin", 10_000, 256)
    training = f"determinism: {determinism}, "
    file = sweep_on(monkeypatch, tmp_path, H100, "auto", installed=True, training=training)
    data = f"data: {{source: tokens:{tmp_path / 'a.bin'}, vocab_size: {vocab}}}\nprecision: {precision}"
    file.write_text(re.sub(r"data: .*", data, file.read_text()))
    found = [line for line in prepare(file, results=tmp_path).plan.cautions if "readout" in line]
    assert ["pad the vocabulary to 50260" in line for line in found] == [True] * said


@pytest.mark.usefixtures("compiled")
def test_the_nodes_of_a_cluster_may_have_what_this_machine_lacks(monkeypatch: Patch, tmp_path: Path) -> None:
    file = sweep_on(monkeypatch, tmp_path, H100, "auto", installed=False)
    monkeypatch.setattr(driver_job, "_device", lambda resources, address: H100)
    assert not [line for line in prepare(file, results=tmp_path, address="far:1").plan.cautions if "Triton" in line]
