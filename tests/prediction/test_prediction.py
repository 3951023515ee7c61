"""What a sweep says of a target, and the mixture of laws behind it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from there import there

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.prediction import Prediction
from hpxfer.prediction.laws import LAWS, Forecast, forecast
from hpxfer.prediction.prediction import target_hps
from hpxfer.recipe import recipe_of
from hpxfer.results import Results, load_results

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
BASE = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 32, "head_dim": 32}
WIDE = {**BASE, "width": 512, "expert_width": 512}


@pytest.fixture(scope="module")
def transfer() -> Results:
    return load_results(PUBLISHED / "transfer")


@pytest.fixture(scope="module")
def wide(transfer: Results) -> Prediction:
    return hpxfer.predict(transfer, WIDE)


def test_a_target_that_continues_the_width_has_a_loss_and_hps(wide: Prediction) -> None:
    assert (wide.parameterization, wide.hp, wide.value, wide.why_no_loss) == ("completep-moe", "lr", 2.0**-6, None)
    assert wide.target.tokens == 512 * 300  # as the shapes of the axis
    assert wide.loss is not None
    assert (wide.loss.axis, wide.loss.scale, len(wide.loss.shapes)) == ("width", 512, 4)
    assert there(wide.loss.forecast).low < there(wide.loss.forecast).loss < wide.loss.nearest.loss
    assert wide.hps.why_not is None
    assert ["fitted from 32 to 256" in caution for caution in wide.hps.cautions] == [True]


def test_tensors_get_what_the_recipe_gives(transfer: Results, wide: Prediction) -> None:
    recipe = hpxfer.Recipe.load(PUBLISHED / "transfer" / "recipe.yaml")
    with pytest.warns(UserWarning, match="beyond what was measured"):
        values = recipe.multipliers(WIDE)
    rows = {row.name: row for row in wide.hps.rows}
    assert rows["expert_in"].size == (4, 512, 512)
    for row in rows.values():
        assert (row.init, row.lr, row.eps) == (values[row.role].init_std, values[row.role].lr, values[row.role].eps)
    assert rows["attn_q"].lr == pytest.approx(2.0**-6 / 16)
    assert there(wide.hps.forward)["readout"] == pytest.approx(32 / 512)
    assert wide.hps.router_bias_lr == 0.01


def test_the_text_starts_with_the_loss_and_the_dict_is_json(wide: Prediction) -> None:
    text, data = str(wide), json.loads(json.dumps(wide.to_dict(), allow_nan=False))
    first = text.splitlines()[0]
    ahead = data["loss"]["forecast"]
    spelled = f"{ahead['loss']:.3f} nats (90% of runs: {ahead['low']:.3f} to {ahead['high']:.3f})"
    assert first.startswith(f"Expect a validation loss of {spelled} for w512 d2 E4A1 h512 trained on 153600 tokens")
    assert "measured at width 256" in first
    for part in ("4x512x512", "Measured along width", "shrinking gain", "Multiply in the forward pass"):
        assert part in text
    assert data["target"]["expert_width"] == 512
    assert len(data["hps"]["rows"]) == len(wide.hps.rows)


@pytest.mark.parametrize(("scale", "where"), [(16, "beyond"), (32, "within"), (48, "within"), (256, "within")])
def test_the_text_says_whether_the_target_lies_between_measured_shapes(
    wide: Prediction, scale: float, where: str
) -> None:
    moved = replace(wide, loss=replace(there(wide.loss), scale=scale))
    assert f"lies {where} the measured width 32 to 256" in str(moved)


def said(found: Prediction) -> str:
    """Return the first sentence, which must say that the loss cannot be said."""
    assert found.loss is None or found.loss.forecast is None
    first = str(found).splitlines()[0]
    assert "cannot be said: " in first
    assert there(found.why_no_loss) in first
    return first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dims", "why", "has_hps"),
    [
        ({"width": 1024, "expert_width": 1024}, "more than 2 times the largest measured one, 256", True),
        ({"width": 512, "expert_width": 512, "depth": 4}, "width 512 has depth 2 (got 4)", True),
        ({"width": 512, "expert_width": 512, "batch_tokens": 512, "steps": 600}, "has steps 300 (got 600)", True),
        ({"width": 512, "expert_width": 512, "num_experts": 8}, "has num_experts 4 (got 8)", False),
        ({"width": 512, "expert_width": 512, "head_dim": 64}, "has head_dim 32 (got 64)", False),
    ],
)
def test_where_no_loss_can_be_said_the_hps_stay(transfer: Results, dims: Any, why: str, has_hps: bool) -> None:
    found = hpxfer.predict(transfer, {**BASE, **dims})
    assert why in said(found)
    assert (found.hps.why_not is None, bool(found.hps.rows)) == (has_hps, has_hps)
    assert has_hps or "completep-moe holds" in str(found)


def test_an_hp_that_drifts_is_not_followed_beyond_what_was_measured(transfer: Results) -> None:
    assert "lr 2^-6 drifts along the axis width" in said(hpxfer.predict(transfer, WIDE, parameterization="sp"))


def test_a_measured_shape_is_named_as_measured(transfer: Results) -> None:
    found = hpxfer.predict(transfer, {**BASE, "width": 128, "expert_width": 128})
    assert found.loss is not None
    assert f"Measured there: {found.loss.nearest.loss:.3f} nats, mean of 5 seeds." in str(found).splitlines()[0]
    assert there(found.loss.forecast).low < found.loss.nearest.loss < there(found.loss.forecast).high


def test_another_base_leaves_fewer_shapes(transfer: Results) -> None:
    found = hpxfer.predict(transfer.from_base("w64"), WIDE)
    assert [shape.scale for shape in there(found.loss).shapes] == [64, 128, 256]
    assert "got 2 (width 128, 256)" in said(hpxfer.predict(transfer.from_base("w128"), WIDE))


@pytest.mark.slow
def test_tokens_are_those_of_the_axis_or_nothing_is_said(transfer: Results, wide: Prediction) -> None:
    same = hpxfer.predict(transfer, WIDE, tokens=153600)
    assert same.loss == wide.loss
    assert "has steps 300 (got 600)" in said(hpxfer.predict(transfer, WIDE, tokens=307200))


@pytest.mark.parametrize(
    ("target", "tokens", "why"),
    [
        (WIDE, 1000, "tokens: must be a multiple of the batch of 512 tokens, got 1000; take 1024"),
        (WIDE, 0, "tokens: must be a whole number of at least 1, got 0"),
        (WIDE, True, "tokens: must be a whole number of at least 1, got True"),
        (WIDE, 512 * 10**10, "tokens: steps must be at most 1000000000, got 10000000000"),
        ({**WIDE, "batch_tokens": 512, "steps": 300}, 512, "leave one of the two out"),
        ({**WIDE, "width": -1}, None, "target_shape: width must be at least 1"),
        ({"wdith": 512}, None, "target_shape: wdith: unknown key; did you mean 'width'?"),
        (3, None, "target_shape: must be a Shape or a mapping"),
    ],
)
def test_a_question_without_sense_is_refused(transfer: Results, target: Any, tokens: Any, why: str) -> None:
    with pytest.raises(HpxferError) as caught:
        hpxfer.predict(transfer, target, tokens)
    assert why in str(caught.value)


def test_an_unknown_arm_is_refused(transfer: Results) -> None:
    with pytest.raises(HpxferError, match="parameterization: must be one of the sweep's, got 'mupp'"):
        hpxfer.predict(transfer, WIDE, parameterization="mupp")


X = (5.0, 6.0, 7.0, 8.0)


def power(x: float) -> float:
    return 2.0 + 0.8 * 2.0 ** (-0.5 * (x - 5))


def line(x: float) -> float:
    return 3.0 - 0.1 * (x - 5)


def ahead(
    law: Callable[[float], float] = power,
    x: tuple[float, ...] = X,
    *,
    at: float = 9.0,
    noise: float = 0.001,
    seeds: int = 3,
    level: float = 0.9,
    times: float = 1.0,
    plus: float = 0.0,
) -> Forecast:
    y = [times * law(each) + plus for each in x]
    return forecast(x, y, [seeds] * len(x), times * noise, (seeds - 1) * len(x), at, level)


def width(found: Forecast) -> float:
    return found.high - found.low


@pytest.mark.parametrize("law", [power, line])
@pytest.mark.parametrize("at", [4.2, 6.5, 8.4, 9.0])
def test_a_law_without_noise_lies_inside_and_close(law: Callable[[float], float], at: float) -> None:
    found = ahead(law, at=at)
    assert found.low < law(at) < found.high
    assert found.mean_low < law(at) < found.mean_high
    assert found.loss == pytest.approx(law(at), abs=0.3 * found.gain)


def test_what_was_measured_exactly_is_known() -> None:
    found = ahead(at=7.0, noise=1e-5)
    assert found.loss == pytest.approx(power(7.0), abs=1e-4)
    assert width(found) < 1e-3


def test_less_is_known_further_away_and_with_more_noise_and_with_fewer_seeds() -> None:
    widths = [width(ahead(at=at)) for at in (8.0, 8.25, 8.5, 9.0)]
    assert widths == sorted(widths)
    assert width(ahead(noise=0.02)) > 1.5 * width(ahead(noise=0.002))
    assert width(ahead(noise=0.02, seeds=2)) > width(ahead(noise=0.02, seeds=10))
    assert width(ahead(level=0.95)) > width(ahead(level=0.9))


def test_a_run_is_less_certain_than_the_mean_of_many() -> None:
    found = ahead(noise=0.02)
    assert found.low < found.mean_low < found.mean_high < found.high


def test_units_and_levels_of_the_loss_do_not_matter() -> None:
    one, other = ahead(), ahead(times=10.0, plus=-7.0)
    for name in ("loss", "low", "high", "mean_low", "mean_high"):
        assert getattr(other, name) == pytest.approx(10 * getattr(one, name) - 7, abs=1e-5)
    assert [law.weight for law in other.laws] == pytest.approx([law.weight for law in one.laws], rel=1e-6)


def test_where_the_scale_starts_does_not_matter() -> None:
    moved = ahead(lambda x: power(x - 3), tuple(x + 3 for x in X), at=12.0)
    assert (moved.low, moved.high) == pytest.approx((ahead().low, ahead().high), abs=1e-7)


def test_a_loss_that_rises_is_the_mirror_of_one_that_falls() -> None:
    up = ahead(lambda x: 5 - power(x))
    assert (up.low, up.high) == pytest.approx((5 - ahead().high, 5 - ahead().low), abs=1e-7)


def test_the_weights_of_the_laws_sum_to_one_and_follow_the_losses() -> None:
    of_power, of_line, of_growth = (
        {law.law: law.weight for law in ahead(law, x=(*X, 9.0, 10.0), at=11.0).laws}
        for law in (power, line, lambda x: 3 - 0.1 * 2 ** (0.4 * (x - 5)))
    )
    for weights in (of_power, of_line, of_growth):
        assert tuple(weights) == LAWS
        assert sum(weights.values()) == pytest.approx(1)
    assert of_power["shrinking gain"] > 0.95
    assert of_line["constant gain"] > 3 * of_power["constant gain"]
    assert of_growth["growing gain"] > 0.5


def test_a_constant_gain_alone_is_surer_and_wrong() -> None:
    """The twin: the line through the losses of a power law misses the next one, with an interval that is as wide."""
    found = ahead(x=X[:3], at=8.0)
    constant = next(law for law in found.laws if law.law == "constant gain")
    assert abs(constant.loss - power(8.0)) > 2 * abs(found.loss - power(8.0))


def test_shapes_that_scatter_more_than_seeds_widen_the_interval() -> None:
    scattered = ahead(lambda x: power(x) + 0.02 * math.cos(math.pi * x))
    assert width(scattered) > 1.5 * width(ahead())


def test_seeds_that_agree_to_the_last_digit_are_no_error() -> None:
    assert math.isfinite(width(ahead(noise=0.0)))
    assert math.isfinite(width(ahead(lambda _: 2.0, noise=0.0)))


def test_a_router_bias_that_the_optimizer_trains_gets_what_a_trial_trains_it_with() -> None:
    """It has the LR and the std of its own, and not the rate of a balancing rule."""
    results = load_results(PUBLISHED / "routers-freeze-soft")
    part, choice = results.expansion.arms["mup-moe"]
    recipe, shape = recipe_of(results, "mup-moe"), part.axes[0].points[-1].shape
    trial = part.trial(choice, shape, recipe.hps, 0)
    setting = replace(trial.setting, mlp=replace(trial.setting.mlp, router_bias="learned", router_bias_std=0.5))
    expected = replace(trial, setting=setting).resolved()["router_bias"]
    (row,) = (row for row in target_hps(recipe, shape, setting).rows if row.role == "router_bias")
    assert (row.init, row.lr) == (expected.init_std, expected.lr)
