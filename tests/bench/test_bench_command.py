"""`hpxfer bench`: what it runs, prints and appends, and what it refuses."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hpxfer.bench import command
from hpxfer.bench.goals import goals
from hpxfer.bench.machine import bench_device, record
from hpxfer.bench.parts import Part
from hpxfer.cli import main
from hpxfer.errors import HpxferError
from hpxfer.plan.speeds import Row, latest

CPU = torch.device("cpu")
ROW = Row(key="ratio-32", what="width 32", value=4.5, unit="x", numbers={"plain_ms": 5.0})


def part_of(*rows: Row) -> Part:
    return Part(keys=tuple(row.key for row in rows), run=lambda: rows)


@pytest.fixture(autouse=True)
def made_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_parts", lambda name, device: [part_of(ROW)] if name == "trainer" else [])


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
    assert [record["name"] for record in json.loads(out)] == ["trainer", "kernels", "moe", "sweep"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kernels.jsonl",
        "moe.jsonl",
        "sweep.jsonl",
        "trainer.jsonl",
    ]


def test_on_a_gpu_cublas_gets_its_workspace_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A strict trial refuses a process that has started CUDA without, as the peaks of the run do."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    seen: list[str] = []

    def parts(*_: object) -> list[Part]:
        seen.append(os.environ[name])
        return [part_of(ROW)]

    monkeypatch.setenv(name, "")  # so that it is put back
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(command, "bench_device", lambda asked: torch.device("cuda"))
    monkeypatch.setattr(command, "_parts", parts)
    monkeypatch.setattr(command, "record", lambda bench, _, *given, **more: record(bench, CPU, *given, **more))
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
    unmeasured = Part(keys=("a",), run=lambda: pytest.fail("measured"))
    monkeypatch.setattr(command, "_parts", lambda name, device: [unmeasured])
    (tmp_path / "file").write_text("")
    code, out, err = bench(capsys, "--device", "cpu", "--output", tmp_path / "file" / "folder")
    assert (code, out) == (2, "")
    assert "cannot be written" in err
    assert "choose another --output" in err


def test_each_row_is_on_the_disk_before_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a crash in the second part leaves is the row of the first."""

    def crash() -> list[Row]:
        assert latest(tmp_path, "trainer", "cpu") is not None
        raise RuntimeError("out of memory")

    parts = [part_of(ROW), Part(keys=("b",), run=crash), Part(keys=("c",), run=lambda: pytest.fail("measured"))]
    monkeypatch.setattr(command, "_parts", lambda name, device: parts)
    with pytest.raises(RuntimeError, match="out of memory"):
        command.run_benches(("trainer",), "cpu", tmp_path)
    found = latest(tmp_path, "trainer", "cpu")
    assert found is not None
    assert found.rows == (ROW,)


def test_a_single_row_is_measured_and_the_others_stay(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(ROW, key="share-32", what="share", value=0.25, unit="of peak")
    beside = replace(ROW, key="beside", value=7.0)
    monkeypatch.setattr(command, "_parts", lambda name, device: [part_of(ROW, beside), part_of(other)])
    assert bench(capsys, "trainer", "--device", "cpu", "--output", tmp_path)[0] == 0
    later = replace(ROW, value=5.5)
    unmeasured = Part(keys=("share-32",), run=lambda: pytest.fail("measured"))
    monkeypatch.setattr(command, "_parts", lambda name, device: [part_of(later, beside), unmeasured])
    code, out, _ = bench(capsys, "trainer", "--row", "ratio-32", "--device", "cpu", "--output", tmp_path, "--json")
    assert code == 0
    (printed,) = json.loads(out)
    assert [row["key"] for row in printed["rows"]] == ["ratio-32"]
    text = bench(capsys, "trainer", "--row", "ratio-32", "--device", "cpu", "--output", tmp_path)[1]
    assert "0.25 of peak" in text  # of the run before
    assert printed["command"] == "hpxfer bench trainer --device cpu --row ratio-32"
    assert len((tmp_path / "trainer.jsonl").read_text().splitlines()) == 5
    found = latest(tmp_path, "trainer", "cpu")
    assert found is not None
    assert found.rows == (later, beside, other)


def test_an_unknown_row_names_the_legal_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = bench(capsys, "trainer", "--row", "layer-512", "--device", "cpu", "--output", tmp_path)
    assert (code, out) == (2, "")
    assert err == "hpxfer: --row: trainer on cpu has no row 'layer-512'; legal: ratio-32\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["trainer", "kernels", "moe", "sweep"])
def test_the_parts_have_the_rows_of_the_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    keys = {key for part in command._parts(name, torch.device("cpu")) for key in part.keys}
    assert {goal.key for goal in goals(name, "cpu")} <= keys
