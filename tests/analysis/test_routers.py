"""Routers against the scale: the published sweep's numbers, exponents, and what is not known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from found_rows import rows

from hpxfer.analysis import analyze
from hpxfer.analysis.statistics.joint_drift import wider_slope
from hpxfer.analysis.statistics.routers import (
    ABSOLUTE,
    BY_NOW,
    CHANGED,
    ENTROPY,
    GRADIENT,
    LOGITS,
    MARGIN,
    MOVED,
    OF_ACTIVE,
    RELATIVE,
    UPDATE,
)
from hpxfer.results import Results, load_results

TRANSFER = Path(__file__).parents[2] / "results" / "published" / "transfer"
Lines = dict[tuple[str, str, str], list[SimpleNamespace]]  # of an arm, a quantity and a step: a row per shape


def of_seeds(results: Results, num: int) -> Results:
    """Return the results with the first seeds only, along width and at LR 2^-6 and its neighbors."""
    spec = results.spec
    only = {"axes": {"width": spec.axes["width"]}, "grid": {"lr": spec.grid["lr"]}}
    return replace(results, spec=spec.model_copy(update={"seeds": tuple(range(num)), **only}))


def lines_of(frame: pd.DataFrame) -> Lines:
    by_line = frame[frame["layer"].isna()].groupby(["parameterization", "quantity", "when"])
    return {(str(arm), str(quantity), str(when)): rows(line) for (arm, quantity, when), line in by_line}


def values(line: list[SimpleNamespace]) -> list[float]:
    return [row.value for row in line]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return analyze(of_seeds(load_results(TRANSFER), 3)).found("routers").frame


@pytest.fixture(scope="module")
def published(frame: pd.DataFrame) -> Lines:
    return lines_of(frame)


def test_the_published_entropies_at_the_end_of_training(frame: pd.DataFrame, published: Lines) -> None:
    """In nats at widths 64, 128 and 256, over three seeds and both layers."""
    for name, expected in (("sp", (0.94, 0.74, 0.58)), ("completep-moe", (1.12, 1.17, 1.16))):
        line = published[name, ENTROPY, "end"]
        assert [row.scale for row in line] == [32, 64, 128, 256]
        assert tuple(round(mean * math.log(4), 2) for mean in values(line)[1:]) == expected
        assert {row.exponent for row in line} == {None}, "no power law is claimed of an entropy"
        assert {(row.step, row.seeds) for row in line} == {(299, 3)}
        for row in line:
            where = {"parameterization": name, "quantity": ENTROPY, "when": "end", "scale": row.scale}
            layers = [each for each in rows(frame, **where) if each.layer is not None]
            assert row.se
            assert [each.layer for each in layers] == [0, 1]
            assert np.mean(values(layers)) == pytest.approx(row.value)
    assert [published["sp", ENTROPY, when][0].step for when in ("start", "after")] == [0, 5]
    assert not any(quantity == OF_ACTIVE for _, quantity, _ in published), "log K is 0 with one active expert"


def test_the_first_update_of_adam_is_its_learning_rate(published: Lines) -> None:
    """It stays in stds at init where both fall as 1/width, and grows by a half where a constant LR meets width^-1/2."""
    for name, relative, absolute in (("completep-moe", 0.0, -1.0), ("sp", 0.5, 0.0)):
        for metric, expected in ((RELATIVE, relative), (UPDATE, absolute)):
            first, *_ = published[name, metric, "start"]
            assert first.exponent == pytest.approx(expected, abs=1e-3)
            assert first.exponent_low <= first.exponent <= first.exponent_high
    assert published["sp", GRADIENT, "end"][0].exponent is None, "its interval holds every law"


def test_measures_of_a_family_that_shows_its_routers() -> None:
    """Planted beside the updates of a published sweep: weights twice as large, logits of width^-1/2."""
    results = load_results(TRANSFER)
    planted = of_seeds(results, 3)
    curves, width_of = results.curves, results.trials.set_index("trial_id")["width"].to_dict()
    updates = curves[(curves["metric"] == "update_rms") & (curves["role"] == "router")].astype({"metric": str})
    weights = updates.assign(metric="weight_rms", value=2 * updates["value"])
    at = updates["trial_id"].astype(str).map(width_of).astype(float)
    logits = updates.assign(metric="router_logit_rms", role=None, layer=0, value=at**-0.5)
    changed = logits.assign(metric="router_changed_share", value=0.25)
    moved = updates.assign(metric="moved_rms", value=at**-1.5)
    more = [weights, logits, changed, moved]
    planted.__dict__["curves"] = pd.concat([curves.astype({"metric": str, "role": object}), *more])
    found = lines_of(analyze(planted).found("routers").frame)
    assert values(found["sp", BY_NOW, "end"]) == pytest.approx([0.5] * 4)
    assert found["sp", LOGITS, "end"][0].exponent == pytest.approx(-0.5)
    assert found["sp", ABSOLUTE, "end"][0].exponent == pytest.approx(-1.5)
    assert found["sp", MOVED, "end"][0].exponent == pytest.approx(-1.0)  # in stds at init, which fall as width^-1/2
    assert values(found["sp", CHANGED, "end"]) == pytest.approx([0.25] * 4)
    assert ("sp", MARGIN, "end") not in found, "nothing was logged of it"


def test_it_says_why_there_is_nothing() -> None:
    results = load_results(TRANSFER)
    bare = of_seeds(results, 2)
    bare.__dict__["curves"] = results.curves[results.curves["metric"] == "train_loss_nats"]
    found = analyze(bare).found("routers")
    assert found.frame.empty
    assert {why for _, why in found.unknown} == {"no trial that finished has a curve of its router"}


def power(exponent: float, wiggle: float = 0.0, luck: float = 0.0) -> list[tuple[float, dict[int, float]]]:
    return [
        (scale, {seed: scale**exponent * 2 ** (wiggle * (-1) ** i + luck * seed * i) for seed in (0, 1)})
        for i, scale in enumerate((32.0, 64.0, 128.0, 256.0))
    ]


def test_an_exponent_and_its_interval() -> None:
    assert wider_slope(power(-0.5)) == pytest.approx((-0.5, -0.5, -0.5))
    slope, low, high = wider_slope(power(-0.5, wiggle=0.2))  # seeds agree, and shapes lie off the line
    assert low is not None
    assert high is not None
    assert slope is not None
    assert low < slope - 0.1 < slope + 0.1 < high
    slope, low, high = wider_slope(power(-0.5, luck=0.1))  # shapes lie on a line, and seeds differ
    assert low is not None
    assert slope == pytest.approx(-0.45)
    assert low < slope - 0.1
    assert wider_slope(power(-0.5, luck=0.5)) == (None, None, None)  # any law may be true


def test_no_exponent_of_zeros_one_scale_or_foreign_seeds() -> None:
    assert wider_slope([]) == (None, None, None)
    assert wider_slope([(32.0, {0: 1.0})]) == (None, None, None)
    assert wider_slope([(32.0, {0: 1.0}), (64.0, {0: 0.0})]) == (None, None, None)
    assert wider_slope([(32.0, {0: 1.0}), (64.0, {1: 2.0})]) == (None, None, None)
    assert wider_slope([(32.0, {0: 1.0}), (64.0, {0: 2.0})]) == (1.0, None, None)
