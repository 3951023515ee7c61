"""What a sweep says of a target: the published sweep `transfer`, asked as a user asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from there import there

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.prediction import Prediction
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


def said(found: Prediction) -> str:
    """Return the first sentence, which must say that the loss cannot be said."""
    assert found.loss is None or found.loss.forecast is None
    first = str(found).splitlines()[0]
    assert "cannot be said: " in first
    assert there(found.why_no_loss) in first
    return first


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
