"""The function form: `train(trial)` in a process of its own, as trials are run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_jobs import Run, Runner

import hpxfer
from hpxfer.spec.own import TimeoutsSpec
from hpxfer.trainer.function import main
from hpxfer.trainer.lines import read_attempts
from hpxfer.trainer.user_trial import TrialRecipe

ROOT = Path(__file__).parents[2]
BASE = {"width": 32, "depth": 2, "head_dim": 16, "num_experts": 4, "num_active": 1, "expert_width": 32}
SLOW = TimeoutsSpec(start_s=300.0, silence_s=300.0)


def run(runner: Runner, body: str, *launcher: str, entry: str = "mine:train", **given: Any) -> Run:
    """Run the module `mine`, which lies beside the trial's folder."""
    (runner.folder.parent / "mine.py").write_text(body)
    config = {
        "function": entry,
        "code_dir": str(runner.folder.parent),
        "args": {"data": "x"},
        "seed": 7,
        "shape": {"width": 64},
        "hps": {"lr": 0.5},
        "roles": {"hidden": {"lr": 0.25}},
    }
    argv = [*(launcher or (sys.executable, "-m")), "hpxfer.trainer", str(runner.folder / "config.json")]
    env = {"PYTHONPATH": str(ROOT), **given.pop("env", {})}
    return runner.run(argv, config=config, env=env, **{"timeouts": SLOW, "cwd": "/", **given})


def log(runner: Runner, name: str = "stderr", attempt: int = 1) -> str:
    return (runner.folder / f"attempt-{attempt}" / name).read_text()


def test_a_function_trains_with_numbers_of_its_trial(runner: Runner) -> None:
    body = """
import sys
def train(trial):
    assert "torch" not in sys.modules and "ray" not in sys.modules
    print(trial.shape, trial.hps, trial.args, trial.seed, trial.rank, trial.world, trial.recipe, trial.resume)
    for step in range(trial.steps):
        trial.alive()
        trial.report(step, trial.hps["lr"] / (step + 1), lr=trial.roles["hidden"]["lr"], kind=step)
    trial.groups(2, [{"names": ["a"], "lr": 0.1}])
    return {"validation": 0.125, "accuracy": 1}
"""
    ending = run(runner, body).ending
    assert (ending.status, ending.validation_loss, ending.metrics) == ("finished", 0.125, {"accuracy": 1.0})
    assert [point.loss for point in ending.points] == [0.5, 0.25, 0.5 / 3]
    assert ending.points[0].metrics == {"lr": 0.25, "kind": 0.0}  # the name of an argument of `_write`
    (attempt,) = read_attempts(runner.folder, trial_id="t1", steps=3)
    assert attempt.groups[0].groups == [{"names": ["a"], "lr": 0.1}]
    assert log(runner, "stdout") == "{'width': 64} {'lr': 0.5} {'data': 'x'} 7 0 1 None None\n"


GENERATOR = """
def train(trial):
    for step in range(trial.steps):
        yield {"step": step, "loss": 1.0, "grad_norm": 2.0}
    return {"validation": 3.0}
"""
DIVERGES = "def train(trial):\n    trial.report(0, 1.0)\n    trial.diverged(1)\n    raise ValueError('goes on')"


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (GENERATOR, ("finished", 3.0, None, 3)),
        ("def train(trial): trial.report(trial.steps, 1.0)", ("finished", None, None, 1)),  # its last step
        (DIVERGES, ("diverged", None, 1, 1)),
    ],
)
def test_how_else_a_function_ends(runner: Runner, body: str, seen: tuple[Any, ...]) -> None:
    ending = run(runner, body).ending
    assert (ending.status, ending.validation_loss, ending.diverged_step, len(ending.points)) == seen
    assert ending.points[0].metrics == ({"grad_norm": 2.0} if body == GENERATOR else {})


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("def train(trial): raise ValueError('wrong')", "bug", "ValueError: wrong"),
        ("def train(trial): bytes(2**62)", "memory", "MemoryError"),
        ("class OutOfMemoryError(RuntimeError): pass\ndef train(t): raise OutOfMemoryError('CUDA')", "memory", "CUDA"),
        ("import hpxfer\ndef train(t): raise hpxfer.HpxferError('data: must exist')", "input", "data: must exist"),
        ("def train(trial): return 3.0", "input", "must return None or numbers by name"),
        ("def train(trial): yield 3.0", "input", "must yield"),
        ("def train(trial): trial.report(1, 'low')", "input", "loss: must be a number, got 'low'"),
        ("def train(trial): trial.groups(1, [{'params': object()}])", "input", "must be plain data"),
        ("def trian(trial): pass", "input", "must be a function of mine, got train; did you mean 'trian'?"),
        ("import no_such_module", "input", "no_such_module"),
        ("def train(trial):\n    with trial.checkpoint(1): pass", "input", "init_process_group() first"),
        ("def train(", "bug", "SyntaxError"),
    ],
)
def test_how_a_function_fails(runner: Runner, body: str, kind: str, words: str) -> None:
    ranks = {"RANK": "1", "WORLD_SIZE": "2"} if "checkpoint" in body else {}  # of which one cannot wait for the other
    ending = run(runner, body, env=ranks).ending
    assert (ending.status, ending.kind) == ("failed", kind), ending.message
    assert words in ending.message
    if "must" in words or "did you mean" in words:
        assert "Traceback" not in log(runner)


def test_a_module_that_is_not_there(runner: Runner) -> None:
    ending = run(runner, "", entry="nowhere.mine:train").ending
    assert ending.kind == "input"
    assert "there is no module 'nowhere'" in ending.message
    assert "Traceback" not in ending.message


def test_a_config_of_another_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, words in (("{}", "contract: must be 1"), ("{", "must be JSON"), (None, "cannot be read")):
        path = tmp_path / "config.json"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        assert main([str(path)]) == 78
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_a_function_that_hangs_says_where(runner: Runner) -> None:
    body = "import time\ndef stuck(): time.sleep(600)\ndef train(trial):\n    trial.report(0, 1.0)\n    stuck()"
    ending = run(runner, body, timeouts=TimeoutsSpec(start_s=300.0, silence_s=5.0)).ending
    assert ending.kind == "timeout"
    assert "in stuck" in ending.message


CHECKPOINTS = """
import os, signal
def train(trial):
    start = 0 if trial.resume is None else int((trial.resume / "step").read_text())
    print(start, flush=True)
    for step in range(start, trial.steps):
        trial.report(step, 10.0 * trial.attempt + step)
        with trial.checkpoint(step) as folder:
            (folder / "step").write_text(str(step))
            if step == 2 and trial.attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    return {"validation": 1.0}
"""


FAILS = """
def train(trial):
    for step in range(2):
        trial.report(step, 1.0)
        with trial.checkpoint(step) as folder:
            (folder / "x").touch()
            if step: raise ValueError("no")
"""


def test_a_checkpoint_that_fails_changes_nothing(runner: Runner) -> None:
    ending = run(runner, FAILS).ending
    assert (ending.kind, ending.advanced) == ("bug", True)
    assert os.listdir(runner.folder / "ckpt") == ["step-0"]


def test_a_checkpoint_is_whole_or_not_there(runner: Runner) -> None:
    first = run(runner, CHECKPOINTS, steps=4).ending
    assert (first.kind, first.advanced) == ("memory", True)
    assert sorted(os.listdir(runner.folder / "ckpt")) == [".step-2.tmp", "step-1"]
    second = run(runner, CHECKPOINTS, steps=4).ending
    assert (second.status, second.resumed, second.advanced) == ("finished", True, True)
    assert log(runner, "stdout", attempt=2) == "1\n"
    assert [point.loss for point in second.points] == [10, 21, 22, 23]
    assert os.listdir(runner.folder / "ckpt") == ["step-3"]


RANKS = """
import torch
import torch.distributed as dist
def train(trial):
    dist.init_process_group("gloo")
    total = torch.tensor([float(trial.rank)])
    dist.all_reduce(total)
    for step in range(trial.steps):
        trial.report(step, total + step)
        with trial.checkpoint(step) as folder:
            (folder / f"rank-{trial.rank}").touch()
    dist.destroy_process_group()
    return {"validation": torch.tensor(2.0), "world": trial.world}
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")


@pytest.mark.slow
def test_an_error_of_one_rank_comes_through_torchrun(runner: Runner) -> None:
    body = "def train(trial):\n    if trial.rank: raise MemoryError('rank 1')\n    import time; time.sleep(600)"
    ending = run(runner, body, *TORCHRUN).ending
    assert ending.kind == "memory", ending.message
    assert json.loads((runner.folder / "attempt-1" / "error.json").read_text())["message"]["errorCode"] == 1


@pytest.mark.slow
def test_two_ranks_speak_once(runner: Runner) -> None:
    ending = run(runner, RANKS, *TORCHRUN).ending
    assert (ending.status, ending.validation_loss, ending.metrics) == ("finished", 2.0, {"world": 2.0}), ending.message
    assert [point.loss for point in ending.points] == [1.0, 2.0, 3.0]
    assert sorted(os.listdir(runner.folder / "ckpt" / "step-2")) == ["rank-0", "rank-1"]


def test_the_recipe_of_a_trial_is_at_its_shape() -> None:
    recipe = hpxfer.Recipe.from_hps("completep-moe", BASE, {"lr": 0.01})
    target = {**BASE, "width": 64}
    mine = TrialRecipe(recipe.dump(), target)
    assert mine.recipe == recipe
    assert mine.forward_multipliers() == recipe.forward_multipliers(target)
    model = torch.nn.ModuleDict({"q": torch.nn.Linear(64, 64, bias=False)})
    roles = {"q.weight": "attn_q"}
    mine.attach(model, by_hand=mine.forward_multipliers())
    groups, expected = mine.param_groups(model, roles), recipe.param_groups(model, roles, target)
    assert [group["lr"] for group in groups] == [group["lr"] for group in expected]
    assert groups[0]["lr"] == recipe.multipliers(target)["attn_q"].lr
    optimizer = torch.optim.AdamW(groups)
    mine.scheduler(optimizer, lambda step: 0.5)
    assert mine.check_lr_ratios(optimizer) == 0.5
