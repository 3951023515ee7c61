"""Verdicts on errors: planted binomial counts, with the twins that fail without each rule.

The counts come from `planted_errors`, which shares no code with the verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from planted_errors import Curve, bowl, planted_errors, trough

from hpxfer.verdict.findings import Finding
from hpxfer.verdict.loss import JudgedLoss
from hpxfer.verdict.report import report_line
from hpxfer.verdict.rules import Rules

BASE = -6.0
RULES = Rules(loss=0.02)
CELL_LUCK = (0.0, 1.0, 0.0)  # all seeds of a cell fail on the same samples, and other cells on others


def judged(samples: int) -> JudgedLoss:
    return JudgedLoss(name="validation_error", words="validation error", kind="error", guess=0.9, num_samples=samples)


def findings(
    curve: Curve, samples: int, drift: float = 0.0, sweeps: int = 8, loss: JudgedLoss | None = None, **given: Any
) -> Iterator[Finding]:
    for luck in range(sweeps):
        line = planted_errors({"mup-moe": curve}, drift={"mup-moe": drift}, samples=samples, luck=luck, **given)
        yield report_line(line, sweep="planted", hp="lr", loss=loss or judged(samples), rules=RULES).findings[0]


def verdicts(found: Iterator[Finding]) -> Counter[str]:
    return Counter(finding.verdict for finding in found)


def coverage(found: Iterator[Finding], drift: float = 0.0, base: float = BASE) -> float:
    """Return the share of 95% intervals that hold the planted optimum."""
    inside = []
    for finding in found:
        for shape in finding.shapes:
            low, high = shape.optimum.low_log2, shape.optimum.high_log2
            at = base + drift * math.log2(shape.scale / 32)
            inside.append((low is None or low <= at) and (high is None or at <= high))
    return sum(inside) / len(inside)


@pytest.mark.parametrize(("drift", "verdict"), [(0.0, "transfers"), (0.8, "drifts"), (-0.8, "drifts")])
def test_a_planted_optimum_that_stays_transfers_and_one_that_moves_drifts(drift: float, verdict: str) -> None:
    assert verdicts(findings(bowl(), 10_000, drift)) == {verdict: 8}


def test_few_samples_leave_a_transfer_undecided_and_say_so() -> None:
    found = list(findings(bowl(), 400))
    assert verdicts(iter(found)) == {"undecided": 8}
    assert all("standard errors of the accuracy given up" in " ".join(finding.reasons) for finding in found)


def test_without_the_binomial_floor_intervals_miss_the_optimum() -> None:
    floor = coverage(findings(bowl(), 1000, sweeps=20, shares=CELL_LUCK))
    bare = replace(judged(1000), num_samples=None)
    assert floor >= 0.93
    assert coverage(findings(bowl(), 1000, sweeps=20, loss=bare, shares=CELL_LUCK)) < 0.85


def test_without_the_binomial_floor_luck_is_called_a_drift() -> None:
    def no_effect(octaves: float) -> float:
        return 0.25

    given = {"shares": CELL_LUCK, "gain": 1.0}
    assert verdicts(findings(no_effect, 1000, sweeps=12, **given))["drifts"] <= 1
    bare = replace(judged(1000), num_samples=None)
    assert verdicts(findings(no_effect, 1000, sweeps=12, loss=bare, **given))["drifts"] >= 10


def test_more_seeds_do_not_lower_what_they_share_and_the_reasons_ask_for_samples() -> None:
    (three,) = findings(bowl(), 500, sweeps=1, shares=CELL_LUCK, seeds=3)
    (nine,) = findings(bowl(), 500, sweeps=1, shares=CELL_LUCK, seeds=9)
    errors = [finding.shapes[-1].regret_se_nats or 0.0 for finding in (three, nine)]
    assert errors[1] > 0.9 * errors[0]
    assert "held-out samples, as all seeds share" in " ".join(nine.reasons)
    assert " seeds instead of " not in " ".join(nine.reasons)


def test_a_plateau_at_guessing_does_not_bend_the_fit() -> None:
    skewed, moves = bowl(2.0, 0.4), {"drift": 0.3, "best": 0.3}
    known = coverage(findings(skewed, 5000, **moves), drift=0.3)
    unbounded = replace(judged(5000), guess=None)
    assert known >= 0.95
    assert coverage(findings(skewed, 5000, loss=unbounded, **moves), drift=0.3) < 0.8


def test_models_that_only_guess_have_no_optimum_and_no_verdict() -> None:
    for finding in findings(lambda octaves: 1.0, 1000, gain=1.0):
        assert finding.verdict == "undecided"
        assert {shape.optimum.kind for shape in finding.shapes} == {"none"}


def test_a_shape_that_learned_nothing_is_no_transfer() -> None:
    line = planted_errors({"mup-moe": bowl()}, drift={"mup-moe": 0.0}, samples=10_000, luck=1)
    dead = line["scale"] == 128.0
    line.loc[dead, "loss"] = 0.9
    (finding,) = report_line(line, sweep="planted", hp="lr", loss=judged(10_000), rules=RULES).findings
    assert finding.verdict == "undecided"
    assert "width 128: no HP value learns anything: the best error is that of guessing" in finding.reasons


@pytest.mark.parametrize("drift", [0.0, 1.2])
def test_where_no_error_is_left_the_intervals_hold_the_middle(drift: float) -> None:
    found = list(findings(trough(), 1000, drift, best=0.0))
    assert coverage(iter(found), drift) == 1.0
    assert verdicts(iter(found)) == {"drifts" if drift else "undecided": 8}
    assert {finding.base_value for finding in found} == {2.0**BASE}
    assert all(shape.octave_nats is None for finding in found for shape in finding.shapes)


def test_one_seed_knows_the_binomial_error_and_still_not_that_of_training() -> None:
    (finding,) = findings(bowl(), 10_000, sweeps=1, seeds=1)
    assert finding.verdict == "undecided"
    assert "one seed: no noise floor, add seeds" in finding.reasons


def test_a_regret_limit_is_a_share_of_the_depth() -> None:
    (finding,) = findings(bowl(), 10_000, sweeps=1)
    for shape in finding.shapes:
        assert shape.best_loss is not None
        assert shape.limit_nats == pytest.approx(0.02 * (0.9 - shape.best_loss))


def test_no_text_of_an_error_names_nats() -> None:
    for curve in (bowl(), lambda octaves: 1.0, trough()):
        line = planted_errors({"mup-moe": curve, "sp": curve}, drift={"mup-moe": 0, "sp": 1}, samples=800, luck=3)
        report = report_line(line, sweep="planted", hp="lr", loss=judged(800), rules=RULES)
        text = report.to_text() + report.summary()
        assert "nats" not in text
        assert "accuracy" in text
