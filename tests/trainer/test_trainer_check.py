"""`hpxfer check --trainer`: each planted fault fails its check alone; what the outcome means for stored results."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from checked_trainer import checks_of, sweep_file
from command_line import hpxfer

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import More, OnEvent, Trains
from hpxfer.recipe.facts import doubts
from hpxfer.recipe.from_sweep import recipe_of
from hpxfer.report.contents import make_report
from hpxfer.report.write import source_of, write_report
from hpxfer.results import Results, load_results
from hpxfer.store.trainer_checks import CHECK_FILE, Outcome, TrainerChecks, read_checks, write_checks
from hpxfer.trainer.check_trials import check_trials
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.setting import trainer_code

TRAINER = """
import json, sys
import numpy as np
config = json.load(open(sys.argv[1]))
draws = np.random.default_rng(SEED)
with open(config["report_file"], "a", buffering=1) as lines:
    for step in range(config["steps"]):
        loss = 3 + 1 / (1 + step) + config["hps"]["lr"] + 0.1 * draws.standard_normal()
        print(json.dumps({"type": "report", "step": step, "loss": loss}), file=lines)
    print(json.dumps({"type": "result", "status": "finished", "validation_loss": loss}), file=lines)
"""
SWEEP = """
name: mine
trainer: {command: ["{arg.python}", train.py, "{config_json}"], files: [train.py], args: {python: PYTHON}}
model: {family: user, own: {d: 64}, dims: {width: d}}
training: {steps: 40, batch_tokens: 64}
parameterizations: [mup, sp]
axes: {d: [128]}
grid: {lr: {log2: [-9, -4]}}
seeds: 3
resources: {executor: local, workers: 2}
"""


def sweep_in(folder: Path, seed: str = 'config["seed"]') -> Path:
    (folder / "train.py").write_text(TRAINER.replace("SEED", seed))
    path = folder / "sweep.yaml"
    path.write_text(SWEEP.replace("PYTHON", json.dumps(sys.executable)))
    return path


class Planted:
    """An executor that trains nothing: a formula gives the loss of each trial."""

    def __init__(self, loss: Callable[[Trial], float]) -> None:
        self.loss = loss

    def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
        while stacks := more():
            for stack in stacks:
                (trial,) = stack.trials
                result = TrialResult(trial_id=trial.id, status="finished", validation_loss_nats=self.loss(trial))
                on_event(stack, Ended(results=(replace(result, wall_s=1.0, stack_size=1),)))


def loss_of(trial: Trial) -> float:
    """Return a loss whose optimum does not move under mup, and moves by two octaves under sp."""
    named = trial.parameterization is not None and trial.parameterization.name == "sp"
    best = -6.3 - (2.0 if named and trial.shape.width > 64 else 0.0)
    noise = 0.001 * math.sin(7 * trial.seed + 100 * math.log2(trial.hps.lr) + trial.shape.width)
    return 3.0 + 0.05 * (math.log2(trial.hps.lr) - best) ** 2 + noise


def results_of(folder: Path, loss: Callable[[Trial], float] = loss_of) -> Results:
    return run(prepare(sweep_in(folder), results=folder / "results"), executor=Planted(loss))


def checked(results: Results, *, code: str | None = None) -> TrainerChecks:
    """Store checks of the trainer of a sweep, of which one has failed."""
    assert results.spec.trainer is not None
    checks = TrainerChecks(
        code=code or trainer_code(results.spec.trainer),
        steps=20,
        extra_sd=0.0,
        outcomes=(
            Outcome(check="init", status="passed", reason="3 parameters start as the recipe says"),
            Outcome(check="seeds", status="failed", reason="two seeds have the same loss"),
        ),
    )
    write_checks(results.folder, checks)
    return checks


@pytest.mark.slow
def test_a_trainer_without_receipts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = tmp_path / "results"
    code, out, err = hpxfer(capsys, "check", "--trainer", sweep_in(tmp_path), "--steps", 6, "--results", at, "--json")
    assert code == 0, err
    found = json.loads(out)
    status = {each["check"]: each["status"] for each in found["outcomes"]}
    assert {name for name, how in status.items() if how == "passed"} == {"seeds", "repetition", "base through two arms"}
    assert set(status.values()) == {"passed", "not possible"}
    why = {each["check"]: each["reason"] for each in found["outcomes"]}
    assert "the trainer writes no receipt; add trial.watch" in why["parameter groups"]
    assert set(found["wall_s"]) == {"base", "base-again", "other-seed", "twice-lr", "other-arm", "larger"}
    config = json.loads((tmp_path / "results/mine/check-runs/check-larger/config.json").read_text())
    assert (config["check"], config["steps"], config["shape"], config["arm"]) == (True, 6, {"d": 128}, "mup")
    stored = read_checks(tmp_path / "results/mine")
    assert stored is not None
    assert stored.undecided_because is None
    assert not list((tmp_path / "results/mine").glob("*.parquet"))  # no trial of a check is a result


def test_an_ignored_seed_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = sweep_in(tmp_path, seed="0")
    code, out, _ = hpxfer(capsys, "check", "--trainer", sweep, "--steps", 6, "--results", tmp_path / "results")
    assert code == 1
    assert "two seeds have the same loss" in out
    assert "Every verdict on this trainer is undecided" in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--seeds", "3"], "--seeds: not read with --trainer"),
        (["--steps", "2"], "--steps: must be at least 5"),
    ],
)
def test_options_that_make_no_sense(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = hpxfer(capsys, "check", "--trainer", sweep_in(tmp_path), *options)
    assert code == 2
    assert says in err


@pytest.mark.slow
def test_a_failed_check_leaves_every_verdict_undecided(tmp_path: Path) -> None:
    before = results_of(tmp_path)
    (report,) = write_report([before.folder], form="text", output=tmp_path / "one").reports
    assert {finding.parameterization: finding.verdict for finding in report.findings} == {
        "mup": "transfers",
        "sp": "drifts",
    }
    assert read_checks(before.folder) is None
    checked(before, code="0" * 32)  # of other code
    found = write_report([before.folder], form="text", output=tmp_path / "outdated")
    assert "transfers" in {finding.verdict for finding in found.reports[0].findings}
    assert "trainer checks: outdated" in found.text()
    written = checked(before)
    assert read_checks(before.folder) == written
    found = write_report([before.folder], form="text", output=tmp_path / "two")
    assert {finding.verdict for finding in found.reports[0].findings} == {"undecided"}
    assert "trainer checks: passed: init; failed: seeds" in found.text()
    assert found.to_dict()["trainer_checks"][1] == "seeds: two seeds have the same loss"
    assert found.next_steps[0].startswith("Next: mend the trainer")
    results = load_results(before.folder)
    assert "the verdict of lr along d is: undecided" in doubts(recipe_of(results).file)
    (section,) = make_report([source_of(results)]).sections
    assert section.checks[0] == "trainer checks: passed: init; failed: seeds"
    assert all(card.finding.reasons[0].startswith("seeds: ") for card in section.cards)
    assert section.analysis.follow_up.yaml is None
    bases = section.analysis.found("bases").frame
    assert len(bases)
    assert "transfers" not in set(bases["verdict"])


@pytest.mark.slow
def test_stored_trials_show_an_ignored_seed(tmp_path: Path) -> None:
    results = results_of(tmp_path, lambda trial: loss_of(replace(trial, seed=0)))
    found = write_report([results.folder], form="text", output=tmp_path / "out")
    assert {finding.verdict for finding in found.reports[0].findings} == {"undecided"}
    assert "ignores its seed" in found.reports[0].headline
    assert "trainer checks: not made" in found.text()


@pytest.mark.parametrize("content", ["[", "[]", '{"hpxfer_check": 2}', '{"hpxfer_check": 1, "code": "x"}'])
def test_a_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / CHECK_FILE).write_text(content)
    with pytest.raises(HpxferError, match=rf"{CHECK_FILE}: .*; hpxfer check --trainer"):
        read_checks(tmp_path)


FAULTS = {
    "none": set(),
    "groups not applied": {"parameter groups"},
    "schedule with a floor": {"schedule", "HP wired"},  # the floor holds the first LR of the warm-up as well
    "init overwritten": {"init"},
    "multiplier missing": {"forward multipliers"},
    "seed ignored": {"seeds"},
    "HP not wired": {"parameter groups", "HP wired"},
    "does not repeat": {"repetition"},
}
DECISIVE = {"parameter groups", "seeds"}


@pytest.mark.first
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_check_alone(fault: str, tmp_path: Path) -> None:
    checks = checks_of(tmp_path, fault)
    assert {each.check for each in checks.outcomes if each.status == "failed"} == FAULTS[fault]
    assert {each.check for each in checks.outcomes if each.status == "not possible"} == set()
    assert (checks.undecided_because is not None) == bool(FAULTS[fault] & DECISIVE)
    assert (checks.extra_sd > 0) == (fault == "does not repeat")


def test_the_trials_are_short_and_none_of_the_sweep(tmp_path: Path) -> None:
    prepared = prepare(sweep_file(tmp_path), results=tmp_path / "results")
    trials = check_trials(prepared.expansion, 10)
    assert list(trials) == ["base", "base-again", "other-seed", "twice-lr", "other-arm", "larger"]
    assert not {each.id for each in trials.values()} & {each.id for each in prepared.expansion.trials()}
    assert {(each.setting.steps, each.setting.warmup_steps, each.shape.steps) for each in trials.values()} == {
        (10, 2, 10)
    }
    base, larger = trials["base"], trials["larger"]
    assert (base.shape.width, larger.shape.width, larger.base) == (32, 128, base.shape)
    assert trials["twice-lr"].hps == base.hps.with_value("lr", 2 * base.hps.lr)
    assert trials["other-seed"].seed != base.seed
    arms = [trials[name].parameterization for name in ("base", "other-arm", "larger")]
    assert [None if arm is None else arm.name for arm in arms] == ["completep", "sp", "completep"]
