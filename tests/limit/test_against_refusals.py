"""What has no limit that is solved is refused, with what to change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from limit_sweeps import REGIME_I, REGIME_II, REGIME_III, arm_of, spec_of

from hpxfer.errors import HpxferError
from hpxfer.limit.against import network_of
from hpxfer.trial import Trial

TOP_1 = {"base": "{width: 16, depth: 1, num_experts: 2, num_active: 1, expert_width: 16}"}


def refusal(regime: dict[str, str], table: str | None = None, **changed: Any) -> str:
    with pytest.raises(HpxferError) as caught:
        network_of(arm_of(spec_of(regime, **changed), table), "my sweep")
    assert str(caught.value).startswith("my sweep: ")
    return str(caught.value)


def changed_trials(regime: dict[str, str], table: str, **of_setting: Any) -> list[Trial]:
    return [replace(trial, setting=replace(trial.setting, **of_setting)) for trial in arm_of(spec_of(regime), table)]


@pytest.mark.parametrize(
    ("regime", "changed", "says"),
    [
        (REGIME_I, {"optimizer": "adamw"}, "training.optimizer: must be sgd, got adamw: an update of Adam divides"),
        (REGIME_I, {"hps": "hps: {momentum: 0.9}"}, "hps.momentum: must be 0, got 0.9"),
        (REGIME_I, {"training": ", weight_decay: 0.1"}, "training.weight_decay: must be 0, got 0.1"),
        (REGIME_I, {"training": ", gradient_clip: 1.0"}, "training.gradient_clip: must be none, got 1"),
        (REGIME_I, TOP_1, "without a bias the router's first choice is a draw of each finite network"),
        (REGIME_I, {"options": ", tied_experts: true"}, "experts that start from one draw are solved in regime III"),
        (REGIME_II, {"options": ", router_bias: fixed"}, "solved in regime I and in residual networks"),
        (REGIME_II, {"options": ", residual: true"}, "has a limit in regime III"),
        (
            REGIME_II,
            {"axis": "{shapes: [{width: 16, num_experts: 16, expert_width: 2}]}", "tables": "sp"},
            "a limit needs shapes of at least two widths, got 16",
        ),
        (
            REGIME_II,
            {"axis": "{shapes: [{width: 32, num_experts: 32, expert_width: 2}]}", "tables": "sp"},
            "num_experts must stay or grow by the factor of the width, got 8 at width 16, 32 at width 32",
        ),
        (
            REGIME_II,
            {"axis": "{shapes: [{width: 32, num_experts: 16, num_active: 8, expert_width: 2}]}", "tables": "sp"},
            "the share of active experts must stay along the axis, got 8 of 8, 8 of 16",
        ),
        (
            REGIME_II,
            {"axis": "{shapes: [{width: 32, num_experts: 8, expert_width: 2}]}", "tables": "sp"},
            "neither experts nor expert width grow with the width",
        ),
        (
            REGIME_I,
            {"base": "{width: 16, depth: 2, num_experts: 2, num_active: 2, expert_width: 16}"},
            "depth must be 1 without a residual, got 2",
        ),
    ],
)
def test_it_is_refused_with_what_to_change(regime: dict[str, str], changed: dict[str, Any], says: str) -> None:
    assert says in refusal(regime, **changed)


def test_all_reasons_of_a_trial_are_named_at_once() -> None:
    found = refusal(REGIME_I, hps="hps: {momentum: 0.9}", training=", weight_decay: 0.1")
    assert "hps.momentum" in found
    assert "training.weight_decay" in found


def test_a_balancing_bias_is_refused_where_experts_are_chosen() -> None:
    base = "{width: 16, depth: 1, num_experts: 8, num_active: 4, expert_width: 2}"
    axis = "{shapes: [{width: 32, num_experts: 16, num_active: 8, expert_width: 2}]}"
    text = spec_of(REGIME_II, base=base, axis=axis)
    model = text.model.model_copy(update={"balance": text.model.balance.model_copy(update={"bias": "proportional"})})
    with pytest.raises(HpxferError, match=r"model.balance.bias: must be none, got proportional"):
        network_of(arm_of(text.model_copy(update={"model": model}), "mssp-ii"))


def test_ties_that_decide_are_refused() -> None:
    base = "{width: 16, depth: 1, num_experts: 4, num_active: 2, expert_width: 8}"
    axis = "{shapes: [{width: 32, num_experts: 8, num_active: 4, expert_width: 16}]}"
    hps = "hps: {multipliers: {router.init_mult: 0}}"
    assert "model.ties: the router starts at zero" in refusal(REGIME_III, "mup-iii", base=base, axis=axis, hps=hps)


def test_another_family_is_refused() -> None:
    with pytest.raises(HpxferError, match=r"limits are solved of the family mlp, got gpt"):
        network_of(changed_trials(REGIME_I, "mup-i", family="gpt"))


def test_trials_of_different_hps_are_no_path() -> None:
    first, *rest = arm_of(spec_of(REGIME_I))
    with pytest.raises(HpxferError, match="HPs must be the same"):
        network_of([replace(first, hps=replace(first.hps, lr=0.5)), *rest])


def test_other_data_at_a_point_is_refused() -> None:
    first, *rest = arm_of(spec_of(REGIME_I))
    other = replace(first, setting=replace(first.setting, data_digest="fedcba"))
    with pytest.raises(HpxferError, match="data_digest must be the same at every shape"):
        network_of([other, *rest])


def test_a_gate_of_a_plugin_is_refused() -> None:
    """Its weights would be taken for those of a softmax."""
    with pytest.raises(HpxferError, match=r"model.gate: must be one of sigmoid, softmax, normalized_softmax, got mine"):
        network_of(changed_trials(REGIME_I, "mup-i", gate="mine"))


def test_bfloat16_is_refused() -> None:
    with pytest.raises(HpxferError, match=r"training.precision: must be float32, got bfloat16"):
        network_of(changed_trials(REGIME_I, "mup-i", precision="bfloat16"))


@pytest.mark.parametrize("bias", ["fixed", "schedule", "learned", "learned_sgd"])
def test_a_bias_gives_top_k_of_regime_i_a_limit(bias: str) -> None:
    """The twin of the refusal without a bias."""
    found = network_of(arm_of(spec_of(REGIME_I, **TOP_1, options=f", router_bias: {bias}")))
    assert found.router_bias == ("learned" if bias == "learned_sgd" else bias)
    assert found.num_active == 1
