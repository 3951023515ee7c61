"""Classification errors at the transferred HP, and how far arms are apart."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from found_rows import rows

from hpxfer.analysis import Found
from hpxfer.analysis.statistics.errors import CLASSIFICATION_ERRORS

LUCK = (0.0, 0.1, 0.2)  # of a seed, at every arm: no noise of a difference
NOISE = (-0.001, 0.0, 0.001)


def errors_of(
    *arms: tuple[str, float],
    seeds: int = 3,
    diverged: tuple[str, ...] = (),
    control: str | None = None,
    known: bool = True,
) -> Found:
    """Return the errors of arms at widths 64 and 128, where the top-5 errors are 0.3 and the given ones.

    A run has 10 steps with a final window of 2. All errors are 1 before it.
    """
    along, trials, curves, findings = {}, [], list[dict[str, Any]](), []
    for arm, at_128 in arms:
        findings.append(SimpleNamespace(axis="width", parameterization=arm, key=("width", arm), base_value=0.1))
        findings[-1].scale_name = "width"
        along["width", arm] = []
        for width, error in ((64, 0.3), (128, at_128)):
            ids = {seed: f"{arm} {width} {seed}" for seed in range(seeds)}
            row = SimpleNamespace(shape=f"w{width}", scale=float(width))
            cell = SimpleNamespace(trial_of=ids)
            along["width", arm].append(SimpleNamespace(row=row, cell=cell, shape=width, trials=tuple(ids.values())))
            for seed, trial in ids.items():
                top5 = error + LUCK[seed] + (NOISE[seed] if arm == "mssp" else 0)
                lost = math.nan if not known or trial in diverged else top5 + 0.05
                trials.append({"trial_id": trial, "validation_error": 2 * lost, "validation_top5_error": lost})
                ends = {7: 1.0, 8: top5 - 0.01, 9: top5 + 0.01}
                curves += [
                    {"trial_id": trial, "metric": "train_top5_error", "step": s, "value": x} for s, x in ends.items()
                ]
    shared = SimpleNamespace(findings=findings, along=along, diverged_steps=dict.fromkeys(diverged, 8))
    results = SimpleNamespace(trials=pd.DataFrame(trials), curves=pd.DataFrame(curves))
    setting = SimpleNamespace(steps=10, final_window_steps=2)
    results.expansion = SimpleNamespace(arms=dict(arms), setting_at=lambda _: setting)
    inputs: Any = SimpleNamespace(
        results=results, hp="lr", rules=SimpleNamespace(control=control), once=lambda _: shared
    )
    return CLASSIFICATION_ERRORS.compute(inputs)


def test_errors_are_means_over_the_final_window_and_arms_are_paired_by_seed() -> None:
    found = errors_of(("mup", 0.2), ("mssp", 0.15))
    assert found.title == "width: top-5 training error of mssp 5 +- 0.058 points lower than that of mup at width 128"
    _, mup, _, mssp = rows(found.frame)
    assert (mup.train_top5_error, mssp.train_top5_error) == pytest.approx((0.3, 0.25))
    assert (mup.validation_top5_error, mup.validation_error) == pytest.approx((0.35, 0.7))
    assert (found.chart.y if found.chart else None) == "train_top5_error"
    assert (mup.against, mssp.against, mup.num_seeds) == (None, "mup", 3)
    assert (mssp.difference_points, mssp.difference_se) == pytest.approx((-5, 0.1 / math.sqrt(3)))
    assert mssp.low_points < -5 < mssp.high_points < 0


def test_the_answer_says_no_more_than_the_seeds_tell() -> None:
    arms = ("mup", 0.2), ("mssp", 0.2)
    assert "no difference is seen in the top-5 training error of mssp and mup at width 128 (" in errors_of(*arms).title
    (one, other), unsure = (("mup", 0.2), ("mssp", 0.25)), "with no two seeds to tell how surely"
    assert errors_of(one, other, seeds=1).title.endswith(f"4.9 points higher than that of mup at width 128, {unsure}")
    assert "of mup 5 +- 0.058 points lower than that of mssp" in errors_of(one, other, control="mssp").title
    assert errors_of(one).title == "width: top-5 training error of mup 0.300 at width 128"


def test_a_diverged_seed_leaves_a_shape_without_errors_and_says_so() -> None:
    found = errors_of(("mup", 0.2), ("mssp", 0.1), diverged=("mup 128 1",))
    assert found.title == "width: top-5 training error of mssp and mup at width 128 not known"
    assert found.unknown == (("width mup w128", "a seed diverged, or no trial has errors"),)


def test_trials_without_errors_have_no_rows_and_nothing_is_unknown() -> None:
    found = errors_of(("mup", 0.2), known=False)
    assert (found.frame.empty, found.title, found.unknown) == (True, "", ())
