"""The examples of a trainer of one's own run end to end through the command line, each on a grid that is shrunken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import hpxfer

from hpxfer.receipts.checks import groups_match, init_matches, schedule_keeps_ratios
from hpxfer.trainer.job import CONFIG, REPORTS

EXAMPLES = Path(__file__).parents[2] / "sweeps" / "any_trainer"
LIMIT_S = 900  # of a process that hangs; a loaded machine is slow
NARROW_GPT = "{own: {n_embd: 48, n_head: 3, n_inner: 192}}"
NARROW_MIXTRAL = "{own: {d_model: 48, heads: 3, d_expert: 96}}"


class Ran:
    """A results folder, with what each trial reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trials = pd.read_parquet(folder / "trials.parquet").set_index("trial_id")

    def config(self, trial: str) -> dict[str, Any]:
        return json.loads((self.folder / "runs" / trial / CONFIG).read_text())

    def lines(self, trial: str, kind: str, attempt: int = 1) -> list[dict[str, Any]]:
        text = (self.folder / "runs" / trial / f"attempt-{attempt}" / REPORTS).read_text()
        return [line for line in map(json.loads, text.splitlines()) if line["type"] == kind]

    def losses(self, trial: str) -> list[float]:
        return [line["loss"] for line in self.lines(trial, "report")]


SMALL = ("name=small", "seeds=1", "grid.lr.log2=[-7,-7]", "training.steps=20", "training.schedule.warmup=4")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs an example in a folder of its own, with some keys changed."""

    def started(name: str, *overrides: str) -> Ran:
        folder = tmp_path / name
        shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
        monkeypatch.chdir(folder)
        # torchrun lies beside the Python that runs the tests.
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        options = [part for override in overrides for part in ("--set", override)]
        code, out, err = hpxfer(capsys, "run", f"own_{name}.yaml", "--executor", "local", "--yes", *options)
        assert code == 0, out + err
        ran = Ran(folder / "results" / "small")
        assert set(ran.trials["status"]) == {"finished"}
        return ran

    return started


@pytest.mark.slow
def test_numpy_alone(run: Callable[..., Ran]) -> None:
    ran = run("numpy", "name=small", "grid.lr.log2=[-6,-6]", "seeds=2", "axes.width=[32, 64]", "training.steps=60")
    assert len(ran.trials) == 2 * 2 * 2
    assert set(ran.trials["loss_unit"]) == {"squared error"}
    rows = ran.trials.assign(width=[json.loads(own)["width"] for own in ran.trials["own"]])
    loss = rows.set_index(["width", "parameterization", "lr", "seed"])["final_window_loss_nats"]
    lr = 2.0**-6
    for seed in (0, 1):
        assert loss[32, "own:scaled", lr, seed] == loss[32, "own:plain", lr, seed]  # to the bit: one model
        assert loss[64, "own:scaled", lr, seed] != loss[64, "own:plain", lr, seed]
    assert loss[32, "own:plain", lr, 0] != loss[32, "own:plain", lr, 1]
    first = ran.trials.index[0]
    assert ran.losses(first)[-1] < ran.losses(first)[0] / 1.5


def test_the_function_in_numpy_has_the_15_lines_of_the_page_and_needs_no_torch() -> None:
    text = (EXAMPLES / "numpy" / "train.py").read_text()
    assert len(text[text.index("def train") :].strip().splitlines()) == 15
    assert [line for line in text.splitlines() if "import " in line] == ["import numpy as np"]


@pytest.mark.slow
def test_nanogpt_under_torchrun(run: Callable[..., Ran]) -> None:
    of_it = (f"axes.width.shapes=[{NARROW_GPT}]", "parameterizations=[completep]", "trainer.args.save_every=8")
    ran = run("nanogpt", *SMALL, *of_it)
    assert len(ran.trials) == 2
    for trial, row in ran.trials.iterrows():
        config, losses = ran.config(str(trial)), ran.losses(str(trial))
        assert len(losses) == 20
        assert losses[-1] < losses[0] - 0.5
        assert losses[-1] - 0.5 < row["validation_loss_nats"] < losses[0]
        receipts, expected = ran.lines(str(trial), "groups"), config["roles"]
        assert [receipt["step"] for receipt in receipts] == [0, 4, 19]
        for receipt in receipts:
            assert groups_match(receipt["groups"], expected).status == "passed"
        assert init_matches(receipts[0]["groups"], expected).status == "passed"
        assert schedule_keeps_ratios(receipts).status == "passed"
        wrong = {role: {**numbers, "eps": 2 * numbers["eps"]} for role, numbers in expected.items()}
        assert groups_match(receipts[0]["groups"], wrong).status == "failed"
    # A trial goes on from its checkpoint as if it had never ended: the same losses, to the bit.
    trial = str(ran.trials.index[0])
    folder, config = ran.folder / "runs" / trial, ran.config(trial)
    (checkpoint,) = (folder / "ckpt").iterdir()  # the newest alone is kept
    assert checkpoint.name == "step-15.pt"
    again = {**config, "resume": str(checkpoint), "attempt": 2, "report_file": str(folder / "attempt-2" / REPORTS)}
    (folder / "attempt-2").mkdir()
    (folder / CONFIG).write_text(json.dumps(again))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launch, "train.py", str(folder / CONFIG)], check=True, timeout=LIMIT_S)
    steps = [(line["step"], line["loss"]) for line in ran.lines(trial, "report", attempt=2)]
    assert steps == list(enumerate(ran.losses(trial)))[16:]
    assert ran.lines(trial, "result", attempt=2) == ran.lines(trial, "result")


@pytest.mark.slow
def test_mixtral_under_the_trainer_of_transformers(run: Callable[..., Ran]) -> None:
    pytest.importorskip("transformers", reason="needs the extra hf")
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")
    ran = run("mixtral", *SMALL, f"axes.width.shapes=[{NARROW_MIXTRAL}]", "parameterizations=[completep-moe]")
    for trial in ran.trials.index:
        losses = ran.losses(str(trial))
        assert len(losses) == 20
        assert losses[-1] < losses[0]
