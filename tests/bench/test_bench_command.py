"""`hpxfer bench`: what it runs, prints and appends, and what it refuses."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from hpxfer.bench import command
from hpxfer.bench.machine import bench_device, record
from hpxfer.cli import main
from hpxfer.errors import HpxferError
from hpxfer.plan.speeds import Row, latest

ROW = Row(key="ratio-32", what="width 32", value=4.5, unit="x", numbers={"plain_ms": 5.0})


@pytest.fixture(autouse=True)
def made_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_rows", lambda name, device: [ROW] if name == "trainer" else [])


def bench(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of `hpxfer bench`."""
    sys.argv = ["hpxfer", "bench", *map(str, arguments)]
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, out.err


def test_one_benchmark_prints_its_tables_and_appends(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = bench(capsys, "trainer", "--device", "cpu", "--output", tmp_path)
    assert code == 0
    assert "4.5x" in out
    assert "The trainer on a GPU: unmeasured" in out
    assert f"written:\n  {tmp_path / 'trainer.jsonl'}" in out
    found = latest(tmp_path, "trainer", "cpu")
    assert found is not None
    assert found.rows == (ROW,)
    assert set(found.machine) == {"cpu", "cores", "threads"}
    assert set(found.versions) == {"hpxfer", "torch", "python"}


def test_alone_it_runs_all(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = bench(capsys, "--device", "cpu", "--output", tmp_path, "--json")
    assert code == 0
    assert [record["name"] for record in json.loads(out)] == ["trainer", "kernels", "sweep"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels.jsonl", "sweep.jsonl", "trainer.jsonl"]


def test_on_a_gpu_cublas_gets_its_workspace_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A strict trial refuses a process that has started CUDA without, as the peaks of the run do."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    seen: list[str] = []

    def rows(*_: object) -> list[Row]:
        seen.append(os.environ[name])
        return [ROW]

    monkeypatch.setenv(name, "")  # so that it is put back
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(command, "bench_device", lambda asked: torch.device("cuda"))
    monkeypatch.setattr(command, "_rows", rows)
    monkeypatch.setattr(command, "record", lambda bench, _, found: record(bench, torch.device("cpu"), found))
    command.run_benches(("kernels", "trainer"), "cuda", tmp_path)
    assert seen == [":4096:8", ":4096:8"]


def test_an_unknown_device_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = bench(capsys, "sweep", "--device", "tpu", "--output", tmp_path)
    assert (code, out, err) == (2, "", "hpxfer: --device must be auto, cpu or cuda, got 'tpu'\n")
    assert list(tmp_path.iterdir()) == []


def test_options_before_the_benchmarks_name_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = bench(capsys, "--output", tmp_path, "trainer")
    assert (code, out) == (2, "")
    assert err == "hpxfer: options stand after the benchmark's name: hpxfer bench trainer [OPTIONS]\n"


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_device("auto").type == bench_device("cpu").type == "cpu"
    with pytest.raises(HpxferError, match="--device cuda needs a CUDA device that torch sees, got none"):
        bench_device("cuda")


def test_a_record_names_the_command_that_made_it() -> None:
    assert record("kernels", torch.device("cpu"), [ROW]).command == "hpxfer bench kernels --device cpu"


def test_an_unwritable_output_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_rows", lambda name, device: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    code, out, err = bench(capsys, "--device", "cpu", "--output", tmp_path / "file" / "folder")
    assert (code, out) == (2, "")
    assert "cannot be written" in err
    assert "choose another --output" in err
