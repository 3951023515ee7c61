"""The tools of this folder: plain ways train the same models, tables hold what is measured, and an acceptance keeps
each number, kills what hangs and goes on where it ended.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import accept
import cpu_kernels
import cpu_steps
import cpu_sweeps
import gpu_items
import pytest
import roofline
import run_bench
import torch
import tune_blocks
from accept import ITEMS, PLANS, Item, run_items, states_of
from cpu_steps import SAMPLES, SampleCase, sample_trials
from fixture_types import Capsys, Patch
from goals import TABLES, bench_markdown, goal_values
from roofline import CASES, Machine, parts_of, trial_of
from there import there
from tiny_trials import one_thread
from tolerances import same_run
from yardsticks import PlainMLPRun, PlainRun

from hpxfer.bench.cases import Case, trials
from hpxfer.data import SampleData
from hpxfer.kernels.configs import Config, table
from hpxfer.model.cost import count_params, flops_per_token
from hpxfer.plan.hardware import latest
from hpxfer.train.device import setup_for
from hpxfer.train.state import TrainState
from hpxfer.train.step import TrainStep
from hpxfer.trial.stack import Stack

__all__ = ["one_thread"]  # as benchmarks run
ROOT = Path(__file__).parents[2]
TINY = Case(width=16, depth=2, head_dim=8, vocab_size=48, context=16, batch_tokens=64, steps=6)
MIXTRAL = replace(TINY, like="mixtral", num_experts=8, num_active=2, kv_heads=1)
# Quick enough that weights move and loads are balanced. Their eps is of the gradients' size: far below it, Adam makes
# whole steps of gradients that are rounding alone.
MOVED = {
    "nanogpt": (TINY, {"lr": 2.0**-4, "eps": 2.0**-8, "router_bias_lr": 0.05}),
    "mixtral": (MIXTRAL, {"lr": 2.0**-5, "eps": 2.0**-8, "aux_weight": 0.5}),
}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("nanogpt", ""), ("nanogpt", "blocks.1.moe.router"), ("mixtral", ""), ("mixtral", "blocks.0.attention.qkv")],
)
def test_the_plain_way_trains_the_same_model_and_the_comparison_sees_a_weight_that_differs(
    name: str, wrong: str, tmp_path: Path
) -> None:
    case, moved = MOVED[name]
    members = tuple(replace(one, hps=replace(one.hps, **moved)) for one in trials(case, 3, tmp_path))
    state, plain, stacked = TrainState(Stack(trials=members), torch.device("cpu")), [], []
    run = PlainRun(members[2], state, 2)
    if wrong:
        run.model.get_submodule(wrong).weight.data.mul_(1.1)
    for step in range(TINY.steps):
        plain.append(run.step(state.data.train_batch(members[2].seed, step)))
        output, grads = state.forward_backward(step)
        stacked.append(float(output.losses_KT.detach()[2].mean()))
        state.update(output, grads)
    same = all(same_run(a, b, torch.float32) for a, b in zip(plain, stacked, strict=True))
    assert same == (not wrong), (plain, stacked)
    if name == "nanogpt" and not wrong:
        biases = torch.stack([block.moe.bias for block in run.model.blocks])
        torch.testing.assert_close(biases, state.router_bias[:, 2])
        assert biases.abs().max() > 0


@pytest.mark.parametrize("listed", [False, True])
def test_the_plain_mlps_train_the_same_model(tmp_path: Path, listed: bool) -> None:
    case = SampleCase(width=16, num_experts=4, inputs=12, classes=7, repeats=1)
    step = TrainStep(Stack(trials=sample_trials(case, 3, tmp_path)), setup_for("cpu"))
    assert isinstance(step.state.data, SampleData)
    run = PlainMLPRun(step.state.stack.trials[2], step.state, listed=listed, member=2)
    for number in range(4):
        inputs, targets = map(torch.from_numpy, step.state.data.train_batch(0, number))
        step.update(*step.gradients(number))
        assert run.step(inputs, targets) == pytest.approx(float(step.monitor.losses[number, 2]), rel=1e-4)
    for case in SAMPLES.values():
        (trial,) = sample_trials(case, 1, tmp_path)
        assert case.flops == flops_per_token(trial.shape, trial.setting) * 50


def test_every_row_of_a_table_is_measured_by_a_part() -> None:
    for name, (_, goals) in TABLES.items():
        assert {goal.key for goal in goals} <= set(itertools.chain(*run_bench.BENCHES[name]()))


@pytest.mark.slow
def test_steps_and_layers_are_measured(monkeypatch: Patch, tmp_path: Path) -> None:
    for module in (cpu_steps, cpu_kernels):
        monkeypatch.setattr(module, "peak_size", lambda: 64)
    rows = [*cpu_steps.step_rows(128, 1, replace(TINY, steps=100)), cpu_kernels.experts_row(32, 1, 2)]
    assert [row.key for row in rows] == ["ratio-128", "share-128", "experts-32"]
    assert all(row.value > 0 for row in rows)
    jobs = cpu_kernels.moe_jobs(64, 16, 8, 2)
    assert [job.run() for job in jobs.values()]
    monkeypatch.setitem(run_bench.BENCHES, "kernels", lambda: {("experts-32",): lambda: [rows[2]]})
    assert run_bench.main(["kernels", "--output", str(tmp_path)]) == 0
    found = there(latest(tmp_path, "kernels", "cpu"))
    assert (found.rows, found.command) == ((rows[2],), "python tests/bench/run_bench.py kernels")


@pytest.mark.slow
def test_a_store_is_measured() -> None:
    rows = cpu_sweeps.store_rows(stored=2, planned=4, small=1, rounds=1)
    assert [row.key for row in rows] == ["store-load", "store-rerun", "store-memory"]
    assert rows[0].numbers["trials"] == 2 * cpu_sweeps.TRIALS_PER_SEED


def test_the_last_numbers_stand_beside_their_goals() -> None:
    numbers = [
        {"key": "r-base-32k", "tokens_per_s": 1e6},
        {"key": "r-base-32k", "tokens_per_s": 1.5e6},
        {"key": "r-base-32k-dense", "tokens_per_s": 1.6e6},
        {"key": "r-alone", "tokens_per_s": None},
        {"key": "layer-512", "value": 1.7, "unit": "x"},
    ]
    assert goal_values(numbers) == {"base-32k": 1.5, "twin-32k": pytest.approx(0.9375), "layer-512": 1.7}
    every = (
        {"key": item.name, "tokens_per_s": 1.0, "tflops": 1.0} for item in (*ITEMS, replace(ITEMS[0], name="peak"))
    )
    assert len(accept.gpu_rows(every)) == 1 + 7  # the heading, and each goal that is made of rates
    assert "| base trial, 64k tokens a step | unmeasured | 1.6 M tokens/s |" in bench_markdown(ROOT / "results/bench")


@pytest.mark.parametrize("name", CASES)
def test_the_roofline_has_the_flops_of_the_cost_model(name: str) -> None:
    case, trial = CASES[name], trial_of(CASES[name])
    parts = {part.name: part for part in parts_of(trial.shape, trial.setting)}
    tokens, attention = case.batch_tokens, 12 * case.depth * case.width * case.context
    products = sum(part.flops for part in parts.values() if part.name != "attention") / tokens
    again = parts["readout"].flops / 4 / tokens if parts["readout"].num_bytes > 7 * tokens * case.vocab_size else 0
    assert products - again == flops_per_token(trial.shape, trial.setting) - attention
    assert parts["attention"].flops / tokens == attention * 7 / 12  # causal, and the scores once more
    assert parts["optimizer"].num_bytes == 28 * count_params(trial.shape, trial.setting).total
    if name == "base-32k":
        # Every tensor of a top-1 layer is as wide as the model; an estimate by others gives 1.46 M tokens/s.
        assert parts["experts"].num_bytes == case.depth * 2 * tokens * case.width * (3 + 2 + 4 + 2 + 2 + 2)
        assert tokens / sum(part.seconds(Machine()) for part in parts.values()) == pytest.approx(1.46e6, rel=0.15)


def test_a_profile_stands_beside_its_parts(tmp_path: Path) -> None:
    kernels = [[8000.0, 6, "nvjet_hsh_128x256"], [1500.0, 2, "cross_entropy_rows_kernel"], [700.0, 8, "up"]]
    kernels += [[100.0, 8, "route"], [50.0, 1, "something_new"], [10.0, 2, "update_all"]]
    (tmp_path / "accept.jsonl").write_text(json.dumps({"key": "step-us", "top": kernels}) + "\n")
    found = roofline.measured_groups("base-32k", tmp_path)
    assert (found["experts"], found["router"], found["others"]) == (700.0, 100.0, 60.0)
    rows = {row[0]: row[-1] for row in roofline.rows_of("base-32k", Machine(), found)}
    assert (rows["readout"], rows["optimizer"], rows["others"]) == ("8.00 ms", "not found", "0.06 ms")
    assert rows["attention projections"] == "see products of a library"


def item(name: str, code: str = "", **more: Any) -> Item:
    """Return an item that prints a number and then runs `code`."""
    begin = f"import json,subprocess,sys,time\nprint(json.dumps({{'key': {name!r}, 'x': 1.5}}), flush=True)\n"
    given = {"plan": "correct", "usual_s": 4.0, "gib": 1, "what": "", **more}
    return Item(name=name, command=(sys.executable, "-c", begin + code), **given)


def run(*items: Item, before: dict[str, str] | None = None, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    ended = run_items(items, **{"budget_s": 100.0, "before": before or {}, "keep": lines.append, **more})
    return {name: (state, why) for name, state, _, why in ended}, lines


def test_an_acceptance_keeps_each_number_and_says_why_an_item_did_not_pass() -> None:
    ended, lines = run(
        item("good", "print('a word')\nprint(json.dumps({'key': 'b', 'y': [1, None]}))"),
        item("bad", "print(json.dumps({'error': 'MemoryError: 3 GiB'}))\nsys.exit(1)"),
        item("after", needs=("bad",)),
        item("untested", needs=("never",)),
        item("infinite", "print(json.dumps({'key': 'b', 'y': float('nan')}))"),
        item("long", usual_s=1000.0),
        item("before", "sys.exit(1)"),
        before={"before": "passed"},
    )
    states = {name: state for name, (state, _) in ended.items()}
    assert states == {
        **dict.fromkeys(("good", "before"), "passed"),
        **dict.fromkeys(("bad", "infinite"), "failed"),
        **dict.fromkeys(("after", "untested", "long"), "skipped"),
    }
    assert ended["after"][1] == "bad failed"
    assert ended["bad"][1] == "exit code 1; MemoryError: 3 GiB"
    assert "not finite" in ended["infinite"][1]
    assert [line.get("key") for line in lines[:3]] == ["good", "b", None]
    assert (lines[0]["of"], lines[2]["item"], lines[2]["ok"]) == ("good", "good", True)
    assert states_of(lines) == {"good": "passed", "bad": "failed", "infinite": "failed"}
    assert json.dumps(lines, allow_nan=False)


@pytest.mark.slow
def test_an_item_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time; time.sleep(2); open({str(mark)!r}, 'w')"
    began = time.monotonic()
    code = f"subprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(60)"
    ended, _ = run(item("hangs", code, usual_s=0.4))
    assert ended["hangs"] == ("failed", "killed at its limit of 1 s")
    assert time.monotonic() - began < 30
    time.sleep(2)
    assert not mark.exists()
    assert run(item("late", "time.sleep(60)", usual_s=0.5), budget_s=0.8)[0]["late"][0] == "skipped"


def test_the_items_are_there_once_after_what_they_need_and_their_tests_exist() -> None:
    seen: set[str] = set()
    for one in ITEMS:
        assert one.name not in seen
        assert set(one.needs) <= seen, one.name
        seen.add(one.name)
        for path in (word for word in one.tests.split() if word.startswith("tests/")):
            files = sorted((ROOT / path).rglob("test_*.py")) if (ROOT / path).is_dir() else [ROOT / path]
            assert any("mark.gpu" in file.read_text() for file in files), path
    assert [plan for plan, _ in itertools.groupby(one.plan for one in ITEMS)] == list(PLANS)
    early = " ".join(one.tests for one in ITEMS if one.plan == "correct")
    for path in (ROOT / "tests/kernels").glob("test_*.py"):
        assert "mark.gpu" not in path.read_text() or str(path.relative_to(ROOT)) in early


@pytest.mark.parametrize("name", [one.name for one in ITEMS if not one.tests])
def test_every_item_has_its_measurement(name: str, monkeypatch: Patch) -> None:
    """The measurements themselves need a GPU; which one an item calls, and with what, does not."""
    called: list[str] = []
    names = ("environment", "layer", "row_kernels", "router", "heads", "speed", "planned_stacks", "memory", "pieces")
    for function in (*names, "base_profile"):
        monkeypatch.setattr(gpu_items, function, lambda *given, function=function: called.append(function))
    monkeypatch.setattr(tune_blocks, "tune", lambda features: called.append("tune"))
    gpu_items.measure(name)
    assert len(called) == 1


@pytest.mark.slow
def test_an_item_of_tests_counts_them_and_an_error_is_named(capsys: Capsys, tmp_path: Path, monkeypatch: Patch) -> None:
    good, bad = "def test_a(): pass\n", "def test_b(): raise AssertionError\n"
    for number, (text, code) in enumerate(((good, 0), (good + bad, 1), ("", 5))):
        (tmp_path / f"test_{number}.py").write_text(text)
        monkeypatch.setattr(gpu_items, "ROOT", tmp_path)
        assert gpu_items.run_tests("t-experts", f"-n 0 test_{number}.py") == code
        line = json.loads(capsys.readouterr().out.splitlines()[0])
        assert (line["passed"], line["failed"]) == (text.count("pass"), text.count("raise"))
    monkeypatch.setattr(gpu_items, "measure", lambda name: 1 / 0)
    assert gpu_items.main("env") == 1
    assert json.loads(capsys.readouterr().out) == {"error": "ZeroDivisionError: division by zero"}


def test_without_a_gpu_every_item_is_listed(capsys: Capsys, monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert accept.main(["--dry"]) == 0
    assert accept.main(["--plan", "tune"]) == accept.UNFINISHED
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "tune-512"


def test_the_fastest_candidate_that_runs_is_found(monkeypatch: Patch) -> None:
    entry = next(one for one in table()["sm90"] if one.dtype_bytes == 2)
    drawn = tune_blocks.Sample(x=None, dy=None, weights=None, gate=None, rows=None)
    monkeypatch.setattr(tune_blocks, "sample", lambda *given, **more: drawn)
    monkeypatch.setattr(tune_blocks.experts_library, "can_run", lambda *given: False)
    told: list[dict[str, Any]] = []

    def clock(config: Config, drawn: object) -> float:
        if config.m == 128:
            raise RuntimeError("too many registers")
        return 1.0 if config.m == 64 else 2.0

    given = {"clock": clock, "tell": lambda **line: told.append(line)}
    assert tune_blocks.best(replace(entry, m=32), torch.device("cpu"), **given) == replace(entry, m=64)
    assert told[2]["skipped"] == "RuntimeError: too many registers"
