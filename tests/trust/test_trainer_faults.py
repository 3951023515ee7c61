"""Each planted fault of a trainer fails the check that is about it, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from checked_trainer import checks_of, sweep_file

from hpxfer.driver import prepare
from hpxfer.trust import check_trials

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
