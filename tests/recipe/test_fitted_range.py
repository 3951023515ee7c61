"""Reach: inside the fitted range nothing is said, outside every step too far is."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from own_model import ROLES, OwnGPT
from recipe_data import BASE, TARGET, data, multiplies, recipe

from hpxfer.errors import HpxferError
from hpxfer.recipe import OutOfRangeWarning, Recipe
from hpxfer.scaling.shape import Shape


def said(made: Recipe, **changes: int) -> str:
    """Return what is warned of at the base with `changes`, or nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.forward_multipliers({**BASE, **changes})
    return "".join(str(made.message) for made in caught)


def with_axes(**axes: Any) -> Recipe:
    joint = data()["fitted"]["axes"]["joint"]
    return recipe(fitted__axes={name: {**joint, **axis} for name, axis in axes.items()})


@given(st.sampled_from((32, 64, 96, 128)), st.integers(2, 4), st.integers(1, 4), st.sampled_from((1, 2)))
@settings(max_examples=examples(20))
def test_nothing_is_said_inside_the_range(width: int, depth: int, active: int, ratio: int) -> None:
    shape = {"width": width, "depth": depth, "num_active": active, "num_experts": 4 * active}
    assert said(recipe(), **shape, expert_width=ratio * width) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"width": 256, "expert_width": 256}, "width 256: fitted from 32 to 128"),
        ({"depth": 1}, "depth 1: fitted from 2 to 4"),
        ({"num_experts": 32, "num_active": 8}, "num_experts 32: fitted from 4 to 16; num_active 8: fitted from 1 to 4"),
        ({"expert_width": 128}, "expert_ratio 4: fitted from 1 to 2"),
        ({"num_active": 2}, "completep-moe holds kappa fixed"),
        ({"batch_tokens": 1024, "steps": 200}, "batch_tokens 1024: fitted at 512 only"),
        ({"batch_tokens": 512, "steps": 400}, "completep-moe does not cover duration: it changes by a factor of 2"),
    ],
)
def test_a_step_too_far_is_said(changes: dict[str, int], why: str) -> None:
    assert why in said(recipe(), **changes)


def test_a_dimension_that_no_axis_moved_is_known_at_the_base_only() -> None:
    made = with_axes(width={"dims": {"width": [32.0, 128.0]}})
    assert said(made, width=128, expert_width=128) == ""
    assert "depth 3: fitted at 2 only" in said(made, depth=3)


def test_the_ranges_of_all_axes_count() -> None:
    made = with_axes(a={"dims": {"depth": [2.0, 4.0]}}, b={"dims": {"depth": [2.0, 8.0]}})
    assert said(made, depth=8) == ""
    assert "depth 9: fitted from 2 to 8" in said(made, depth=9)


@pytest.mark.parametrize("verdict", ["drifts", "undecided"])
def test_an_axis_without_transfer_is_said_where_the_target_moves_along_it(verdict: str) -> None:
    made = with_axes(
        width={"dims": {"width": [32.0, 128.0]}, "verdict": verdict}, depth={"dims": {"depth": [2.0, 4.0]}}
    )
    assert f"lr along the axis width: the verdict is '{verdict}'" in said(made, width=64, expert_width=64)
    assert said(made, depth=4) == ""


def test_the_warning_points_at_the_line_of_the_user() -> None:
    far, made = {**TARGET, "depth": 99}, recipe()
    deep = {**BASE, "depth": 99}
    with pytest.warns(OutOfRangeWarning):
        model = multiplies(OwnGPT(Shape(**deep), 8, 8, made.forward_multipliers(BASE)), made, deep)
    for call in (
        lambda: made.forward_multipliers(far),
        lambda: made.multipliers(far),
        lambda: made.router_bias_lr(far),
        lambda: made.param_groups(model, ROLES, deep),
        lambda: made.init_(model, ROLES, deep),
    ):
        with pytest.warns(OutOfRangeWarning, match="is beyond what was measured: depth 99") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("hand", {"num_active": 2}, "completep-moe holds kappa fixed: it goes from 0.25 to 0.5"),
        ("fitted", {"head_dim": 32}, "completep-moe holds head_dim fixed: it goes from 16 to 32"),
        ("fitted", {"dense_width": 64}, "the target has dense FFNs and the base has none to compare them with"),
        ("fitted", {"num_shared": 1, "shared_width": 32}, "completep-moe does not cover shared"),
        ("fitted", {"num_active": 2, "expert_width": 256}, "completep-moe holds kappa fixed"),
        ("mup-moe", {"depth": 4}, "mup-moe does not cover depth"),
        ("mup-moe", {"num_experts": 8, "num_active": 2}, "mup-moe holds num_experts fixed"),
    ],
)
def test_a_target_that_the_table_does_not_lead_to_is_refused(name: str, changes: dict[str, int], why: str) -> None:
    made = {
        "hand": lambda: Recipe.from_hps("completep-moe", BASE, {"lr": 0.1}),
        "fitted": recipe,
        "mup-moe": lambda: Recipe.from_hps("mup-moe", BASE, {"lr": 0.1}),
    }[name]()
    target = {**BASE, **changes}
    for call in (made.forward_multipliers, made.multipliers, made.describe, made.router_bias_lr):
        with pytest.raises(
            HpxferError, match=r"target_shape: must be a shape that .* leads to from the recipe's base w32"
        ):
            call(target)
        with pytest.raises(HpxferError, match=why):
            call(target)


def test_a_smaller_target_and_one_that_only_trains_longer_have_the_base_as_ancestor() -> None:
    made = Recipe.from_hps("completep-moe", {**TARGET, "batch_tokens": 64, "steps": 10}, {"lr": 0.1})
    assert made.forward_multipliers(BASE)["readout"] == 2.0
    with pytest.warns(OutOfRangeWarning, match="completep-moe does not cover duration"):
        made.multipliers({**BASE, "batch_tokens": 64, "steps": 20})


def test_what_a_sweep_went_through_is_no_matter_of_the_table() -> None:
    """kappa moved on an axis of the sweep: its verdict counts, and the target is warned of, not refused."""
    made = with_axes(active={"dims": {"num_active": [1.0, 2.0]}})
    assert "completep-moe holds kappa fixed" in said(made, num_active=2)
    with pytest.raises(HpxferError, match="holds kappa fixed"):
        made.forward_multipliers({**BASE, "num_active": 4})


def test_batch_and_duration_move_the_numbers_of_a_table_that_covers_them() -> None:
    base = {**BASE, "batch_tokens": 64, "steps": 10}
    made = Recipe.from_hps("complete-mue", base, {"lr": 0.1}, gate="normalized_sigmoid")
    model = OwnGPT(made.base_shape, 8, 8, {**made.forward_multipliers(BASE), "shared_out": 1.0, "dense_out": 1.0})
    multiplies(model, made, BASE)
    (group, *_) = made.param_groups(model, ROLES, {**base, "steps": 40})
    assert group["betas"] == pytest.approx((1 - 0.1 / 4, 1 - 0.05 / 4))
    assert made.multipliers({**base, "steps": 40})["embedding"].lr == pytest.approx(0.05)


def test_a_target_without_attention_is_refused() -> None:
    bare = {name: value for name, value in TARGET.items() if name != "head_dim"}
    for call in (recipe().multipliers, recipe().describe):
        with pytest.raises(HpxferError, match=r"^target_shape: must give head_dim, as the base does \(16\), got none"):
            call(bare)
