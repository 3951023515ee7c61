"""`hpxfer bench`: its clock, what it measures, prints, appends and refuses, and that a plan reads it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import hpxfer
from fixture_types import Capsys, Patch
from there import there
from tiny_trials import one_thread

from hpxfer.bench import command, rates
from hpxfer.bench.cases import Case, trials
from hpxfer.bench.clock import Job, interleaved, median, ratio
from hpxfer.bench.command import bench_device
from hpxfer.bench.rates import BASE, LARGE, SMALL, Rate, cpu_case, cpu_row, muon_row, progress, rate, steady
from hpxfer.data import open_data
from hpxfer.errors import HpxferError
from hpxfer.model.cost import count_params, flops_per_token
from hpxfer.plan.hardware import CPU_CORE, SPEEDS, Row, append, hardware_named, latest, rate_of
from hpxfer.train import trainer
from hpxfer.trial.stack import Stack

__all__ = ["one_thread"]  # as benchmarks run
CPU = torch.device("cpu")
ROW = Row(key="width-32", what="width 32", value=4.5, unit="M tokens/s", numbers={"us_per_token": 5.0})
TINY = Case(width=16, depth=2, head_dim=8, vocab_size=48, context=16, batch_tokens=64, steps=6)


@pytest.fixture
def made(monkeypatch: Patch) -> dict[str, object]:
    """Made-up rows: key -> what comes back from its measurement, or is raised by it."""
    found: dict[str, object] = {"width-32": ROW}

    def measure(key: str) -> object:
        if isinstance(found[key], Exception):
            raise found[key]
        return found[key]

    monkeypatch.setattr(command, "rows_on", lambda device: {key: lambda key=key: measure(key) for key in found})
    return found


def test_it_prints_a_table_and_appends_and_a_single_row_leaves_the_others(
    made: dict[str, object], capsys: Capsys, tmp_path: Path
) -> None:
    other = made["width-64"] = replace(ROW, key="width-64")
    given = ("bench", "--device", "cpu", "--output", tmp_path)
    code, out, _ = hpxfer(capsys, *given)
    assert code == 0
    assert "4.5 M tokens/s" in out
    assert f"written:\n  {tmp_path / 'speeds.jsonl'}" in out
    later = made["width-32"] = replace(ROW, value=5.5)
    made["width-64"] = RuntimeError("not asked for")
    made["large"] = None  # a case that does not fit
    code, out, _ = hpxfer(capsys, *given, "--row", "width-32", "--row", "large", "--json")
    assert code == 0
    assert [row["value"] for row in json.loads(out)["rows"]] == [5.5, 4.5]
    found = there(latest(tmp_path, SPEEDS, "cpu"))
    assert (found.rows, found.command) == ((later, other), "hpxfer bench --device cpu")
    assert set(found.machine) == {"cpu", "cores", "threads"}
    assert set(found.versions) == {"hpxfer", "torch", "python"}


def test_each_row_is_on_the_disk_before_the_next_begins(made: dict[str, object], tmp_path: Path) -> None:
    """What a crash in the second part leaves is the row of the first."""
    made["b"] = RuntimeError("out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        command.run_bench("cpu", tmp_path)
    assert there(latest(tmp_path, SPEEDS, "cpu")).rows == (ROW,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "--device must be auto, cpu or cuda, got 'tpu'"),
        (["--device", "cpu", "--row", "stack-8"], "--row: cpu has no row 'stack-8'; legal: width-32"),
        (["--device", "cpu", "--output", "file/folder"], "choose another folder with --output"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(
    made: dict[str, object], arguments: list[str], message: str, capsys: Capsys, tmp_path: Path, monkeypatch: Patch
) -> None:
    made["width-32"] = RuntimeError("measured")
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    code, out, err = hpxfer(capsys, "bench", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_cuda_is_refused_where_there_is_none(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_device("auto").type == bench_device("cpu").type == "cpu"
    with pytest.raises(HpxferError, match="--device cuda needs a CUDA device that torch sees, got none"):
        bench_device("cuda")


def test_muon_is_measured_as_a_share_of_a_step(monkeypatch: Patch) -> None:
    monkeypatch.setattr(rates, "cpu_case", lambda width: TINY)
    row = muon_row(16, rounds=1)
    assert 0 < row.value < 1
    assert 0 < row.numbers["share_of_flops"] < 1
    assert row.numbers["rate_over_product"] > 0


def test_a_plan_counts_with_what_was_measured_on_this_cpu(tmp_path: Path, monkeypatch: Patch) -> None:
    """The rows are those of a core that takes 2 us per token and makes 10 GFLOP/s."""
    monkeypatch.setattr(rates, "cpu_case", lambda width: replace(TINY, steps=40))
    row = cpu_row(32, rounds=1)
    assert row.value == pytest.approx(1 / row.numbers["us_per_token"])
    for flop in (1e5, 1e6, 1e7):
        numbers = {"flop_per_token": flop, "us_per_token": 2 + flop / 1e4}
        run = command.record(SPEEDS, "hpxfer bench", CPU, run="r")
        append(replace(run, rows=(replace(row, key=f"{flop}", numbers=numbers),)), tmp_path)
    assert rate_of(CPU_CORE, "float32", tmp_path).core == pytest.approx((2e-6, 1e10))
    assert rate_of(CPU_CORE, "float32", tmp_path).source.startswith("measured by `hpxfer bench`, ")
    monkeypatch.setattr("hpxfer.plan.hardware.cpu_name", lambda: "another")
    assert rate_of(CPU_CORE, "float32", tmp_path).source == "measured 2026-11 on one core of a two-core AMD EPYC"


def test_the_rows_of_a_gpu_are_what_a_plan_reads_and_a_case_that_does_not_fit_is_left_out(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=2**30))
    assert rates.alone_row("large", LARGE, torch.device("cuda"), 1.0) is None
    found = Rate(tokens_per_s=2e6, flop_per_s=4e14, params=10**9)
    monkeypatch.setattr(rates, "rate_if_it_fits", lambda case, device, num_trials=1: found)
    monkeypatch.setattr(rates, "matmul_peak", lambda device: 8e14)
    rows = [measure() for measure in rates.rows(torch.device("cuda")).values()]
    run = replace(command.record(SPEEDS, "hpxfer bench", CPU), device="cuda", machine={"gpu": "NVIDIA H200"})
    append(replace(run, rows=tuple(row for row in rows if row)), tmp_path)
    assert rate_of(hardware_named("h200"), "bfloat16", tmp_path).measured == ((1e9, 4e14),) * 3
    assert rate_of(hardware_named("h100"), "bfloat16", tmp_path).measured == ()
    assert [row.numbers["step_tokens"] for row in rows if row and row.key.startswith("stack")] == [8192, 65536, 524288]


def test_the_rate_of_a_tiny_case(monkeypatch: Patch) -> None:
    monkeypatch.setattr(trainer, "PROGRESS_S", 0.01)
    found = rate(replace(TINY, steps=100), CPU, num_trials=2, determinism="strict")
    assert found.tokens_per_s > 0
    assert found.flop_per_s / found.tokens_per_s > 6 * TINY.width * TINY.vocab_size
    assert found.params > 0


def test_a_rate_leaves_out_the_start_and_the_remainder_and_a_run_too_short_or_diverging_has_none(
    tmp_path: Path,
) -> None:
    marks = [(100.0, 5), (101.0, 40), (102.0, 20), (104.0, 60), (104.5, 10**9)]
    assert steady(marks) == 30.0
    with pytest.raises(HpxferError, match="needs 3 intervals between reports of progress, got 0; give more steps"):
        rate(TINY, CPU)
    (member,) = trials(replace(TINY, steps=40), 1, tmp_path)
    wild = replace(member, hps=replace(member.hps, lr=1e6))
    with pytest.raises(HpxferError, match=r"must finish, got \['diverged'\]"):
        progress(Stack(trials=(wild,)), CPU, None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_rate_on_cuda(monkeypatch: Patch) -> None:
    monkeypatch.setattr(trainer, "PROGRESS_S", 0.01)
    assert rate(replace(TINY, steps=400), torch.device("cuda")).tokens_per_s > 0


def test_trials_differ_in_seed_and_lr_and_their_data_is_random_and_holds_the_run(tmp_path: Path) -> None:
    members = trials(TINY, 5, tmp_path)
    assert len({trial.seed for trial in members}) == len({trial.hps.lr for trial in members}) == 5
    assert len({(trial.shape, trial.setting) for trial in members}) == 1
    data = open_data(members[0].setting)
    counts = np.bincount(np.concatenate([data.train_batch(0, step)[0].ravel() for step in range(TINY.steps)]))
    assert len(counts) == TINY.vocab_size
    assert counts.max() < 30  # 384 tokens over 48 ids


@pytest.mark.parametrize("case", [cpu_case(32), BASE, LARGE, SMALL])
def test_a_dense_twin_has_equal_active_flops(case: Case, tmp_path: Path) -> None:
    few = replace(case, steps=1, batch_tokens=case.context)
    moe, twin = (trials(case, 1, tmp_path)[0] for case in (few, replace(few, dense=True)))
    router = 6 * case.depth * case.width * case.num_experts
    assert flops_per_token(moe.shape, moe.setting) - router == flops_per_token(twin.shape, twin.setting)
    assert case != LARGE or 2.0e9 < count_params(moe.shape, moe.setting).total < 2.2e9


def test_every_round_runs_every_job_once_in_turn_and_a_ratio_is_taken_within_rounds() -> None:
    calls: list[str] = []
    jobs = {name: Job(run=lambda name=name: calls.append(name)) for name in "abc"}  # type: ignore[misc]
    times = interleaved(jobs, rounds=3, device=CPU)
    assert "".join(calls) == "cba" + "abc" + "cba" + "abc"
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}
    times = {"a": (8.0, 50.0, 9.0), "b": (1.0, 10.0, 3.0)}
    assert ratio(times, "a", "b") == 5.0
    assert median(times, "a") == 9.0


def test_the_first_round_the_preparation_and_waiting_are_not_counted(monkeypatch: Patch) -> None:
    """The clock of a CPU is that of this process's work: time that passes without any is not seen."""
    at, took = [0.0], iter([100.0, 6.0, 8.0])

    def work(seconds: float) -> None:
        at[0] += seconds

    monkeypatch.setattr(time, "process_time", lambda: at[0])
    job = Job(prepare=lambda: work(1000.0), run=lambda: work(next(took)), count=2)
    assert interleaved({"a": job}, rounds=2, device=CPU) == {"a": (3.0, 4.0)}
    assert interleaved({"wait": Job(run=lambda: time.sleep(0.001))}, rounds=2, device=CPU) == {"wait": (0.0, 0.0)}
