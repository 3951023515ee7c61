"""The network that trials approach is read off their numbers. What has no limit that is solved is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from limit_sweeps import REGIME_I, REGIME_II, REGIME_III, arm_of, spec_of

from hpxfer.errors import HpxferError
from hpxfer.limit.of_trials import constants_of, largest_instead, network_of
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.scaling.tables.mssp import MSSP_II
from hpxfer.trial import Trial

TOP_1 = {"base": "{width: 16, depth: 1, num_experts: 2, num_active: 1, expert_width: 16}"}
HALF = {
    "base": "{width: 16, depth: 1, num_experts: 8, num_active: 4, expert_width: 2}",
    "axis": "{shapes: [{width: 32, num_experts: 16, num_active: 8, expert_width: 2}]}",
}
TIES = {
    "base": "{width: 16, depth: 1, num_experts: 4, num_active: 2, expert_width: 8}",
    "axis": "{shapes: [{width: 32, num_experts: 8, num_active: 4, expert_width: 16}]}",
    "hps": "hps: {multipliers: {router.init_mult: 0}}",
}
FACTORS = st.sampled_from([0.25, 0.5, 2.0, 3.0])


@settings(max_examples=examples(15), deadline=None)
@given(init=FACTORS, lr_mult=FACTORS, forward=FACTORS)
def test_constants_of_mssp_ii_are_those_by_hand(init: float, lr_mult: float, forward: float) -> None:
    """The base has width 16, 8 experts of 2 hidden features. MSSP Table B.1 is written out here."""
    multipliers = ", ".join(
        f"{role}.{kind}: {value}"
        for role in ("embedding", "router", "expert_out", "readout")
        for kind, value in (("lr_mult", lr_mult), ("forward_mult", forward))
    )
    hps = f"hps: {{init_scale: {init}, multipliers: {{{multipliers}}}}}"
    path = arm_of(spec_of(REGIME_II, hps=hps), "mssp-ii")
    for trial in path:
        found = constants_of(trial, "mssp-ii")
        n, m, hidden = trial.shape.width, trial.shape.num_experts, trial.shape.expert_width
        grown = n / 16
        # Of the sweep: the std by fan-in at the base and its growth; the growth of the LR from 1 at the base.
        std = {
            "embedding": init * 4**-0.5,
            "router": init * 16**-0.5 * grown**-0.5,
            "expert_in": init * 16**-0.5 * grown**-0.5,
            "expert_out": init * hidden**-0.5 * grown**0.5,
            "readout": init * 16**-0.5 / grown,
        }
        rate = {"embedding": grown, "router": 1.0, "expert_in": 1.0, "expert_out": grown**2, "readout": 1 / grown}
        # Of the paper.
        paper_std = {
            "embedding": 4**-0.5,
            "router": n**-0.5,
            "expert_in": n**-0.5,
            "expert_out": (m / hidden) ** 0.5,
            "readout": 1 / n,
        }
        paper_rate = {"embedding": n, "router": m / n, "expert_in": m / n, "expert_out": m * n, "readout": 1 / n}
        for role, constant in found.items():
            times, lr = (1.0, 1.0) if role == "expert_in" else (forward, lr_mult)
            assert constant.std == pytest.approx(times * std[role] / paper_std[role], rel=1e-9)
            assert constant.rate == pytest.approx(times**2 * lr * rate[role] / paper_rate[role], rel=1e-9)


@pytest.mark.parametrize(
    ("regime", "table", "style"),
    [
        (REGIME_I, "mup-i", "mup"),
        (REGIME_I, "mssp-i", "mssp"),
        (REGIME_I, "mup", "mup"),
        (REGIME_I, "mup-moe", "mup"),
        (REGIME_II, "mup-ii", "mup"),
        (REGIME_II, "mssp-ii", "mssp"),
        (REGIME_III, "mup-iii", "mup"),
        (REGIME_III, "mssp-iii", "mssp"),
    ],
)
def test_the_regime_and_the_style_follow_from_the_numbers(regime: dict[str, str], table: str, style: str) -> None:
    found = network_of(arm_of(spec_of(regime, tables=table)))
    assert (found.regime, found.parameterization) == (regime["name"].upper(), style)
    if found.regime == "II":
        assert (found.expert_width, found.experts_per_width) == (2, 0.5)
    if found.regime == "III":
        assert (found.expert_ratio, found.experts_per_width) == (0.5, 0.25)
    if found.regime == "I":
        assert (found.num_experts, found.num_active, found.expert_ratio) == (2, 2, 1.0)


def test_another_base_of_the_same_models_gives_the_same_network() -> None:
    """From base 16 and from base 32, HPs that agree at width 32 give one network."""
    multipliers = (
        "embedding.lr_mult: 2, expert_out.lr_mult: 4, readout.lr_mult: 0.5, "
        f"expert_out.init_mult: {2**0.5}, readout.init_mult: {2**-0.5}"
    )
    other = spec_of(
        REGIME_II,
        base="{width: 32, depth: 1, num_experts: 16, num_active: 16, expert_width: 2}",
        axis="{shapes: [{width: 64, num_experts: 32, expert_width: 2}]}",
        hps=f"hps: {{multipliers: {{{multipliers}}}}}",
    )
    near, far = network_of(arm_of(spec_of(REGIME_II), "mssp-ii")), network_of(arm_of(other, "mssp-ii"))
    for role in ("embedding", "router", "expert_in", "expert_out", "readout"):
        assert far.std(role) == pytest.approx(near.std(role), rel=1e-9)
        assert far.rate(role) == pytest.approx(near.rate(role), rel=1e-9)


def test_a_table_is_known_by_its_numbers_and_not_by_its_name() -> None:
    mine = replace(MSSP_II, name="mine", regime=None)
    with PARAMETERIZATIONS.registered(mine):
        found = network_of(arm_of(spec_of(REGIME_II, tables="mine")))
    assert found == network_of(arm_of(spec_of(REGIME_II), "mssp-ii"))


def test_a_readout_of_zero_is_a_constant_of_zero() -> None:
    found = network_of(arm_of(spec_of(REGIME_II, hps="hps: {multipliers: {readout.init_mult: 0}}"), "mssp-ii"))
    assert found.std("readout") == 0.0
    assert found.rate("readout") == pytest.approx(16)


def test_the_factor_of_an_average_over_all_is_part_of_the_aggregation() -> None:
    """Half of the experts are active. Under 1/M the sum has half the factor, which is the aggregation's."""
    one, other = (
        network_of(arm_of(spec_of(REGIME_II, **HALF, options=f", aggregation: {each}"), "mssp-ii"))
        for each in ("1/K", "1/M")
    )
    assert (one.aggregation, other.aggregation) == ("1/K", "1/M")
    assert one.active_share == other.active_share == 0.5
    assert one.init_mult == other.init_mult


def test_a_gate_that_sums_to_one_has_no_factor_left() -> None:
    found = network_of(arm_of(spec_of(REGIME_I, gate="softmax", options=", expert_matrices: 1")))
    assert found.aggregation == "none"
    assert found.std("expert_out") == pytest.approx(1.0)
    assert found.rate("expert_out") == pytest.approx(1.0)


@pytest.mark.parametrize("bias", ["fixed", "schedule", "learned", "learned_sgd"])
def test_a_bias_gives_top_k_of_regime_i_a_limit(bias: str) -> None:
    """The twin of the refusal without a bias."""
    found = network_of(arm_of(spec_of(REGIME_I, **TOP_1, options=f", router_bias: {bias}")))
    assert found.router_bias == ("learned" if bias == "learned_sgd" else bias)
    assert found.num_active == 1


# Refusals, each with what to change.


def along(shape: str) -> dict[str, str]:
    """Return the edits to a sweep of regime II whose axis has this shape beside the base."""
    return {"axis": f"{{shapes: [{{{shape}, expert_width: 2}}]}}", "tables": "sp"}


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
        (REGIME_II, along("width: 16, num_experts: 16"), "a limit needs shapes of at least two widths, got 16"),
        (REGIME_II, along("width: 32, num_experts: 32"),
         "num_experts must stay or grow by the factor of the width, got 8 at width 16, 32 at width 32"),
        (REGIME_II, along("width: 32, num_experts: 16, num_active: 8"),
         "the share of active experts must stay along the axis, got 8 of 8, 8 of 16"),
        (REGIME_II, along("width: 32, num_experts: 8"), "neither experts nor expert width grow with the width"),
        (REGIME_I, {"base": TOP_1["base"].replace("depth: 1", "depth: 2")},
         "depth must be 1 without a residual, got 2"),
        (REGIME_III, {**TIES, "tables": "mup-iii"}, "model.ties: the router starts at zero"),
        # Of a control, and of the LRs of muP in regime I in another regime.
        (REGIME_I, {"tables": "sp"}, "must approach a limit: those of "),
        (REGIME_II, {"tables": "sp"}, "must approach a limit: those of "),
        (REGIME_III, {"tables": "ntp"}, "must approach a limit: those of "),
        (REGIME_II, {"tables": "mup"}, "expert_out LR"),
    ],
)  # fmt: skip
def test_it_is_refused_with_what_to_change(regime: dict[str, str], changed: dict[str, Any], says: str) -> None:
    with pytest.raises(HpxferError) as caught:
        network_of(arm_of(spec_of(regime, **changed)), "my sweep")
    assert str(caught.value).startswith("my sweep: ")
    assert says in str(caught.value)


def growing(name: str, options: str = ", residual: true", more: str = "") -> list[Trial]:
    """Return the arm of one axis of CompleteP for MoE's Fig. 18."""
    shapes = {
        "experts": "{num_experts: 16, num_active: 16}",
        "width": "{width: 32, expert_width: 16}",
        "expert_width": "{expert_width: 16}",
        "all": "{width: 32, num_experts: 8, expert_width: 16}",
    }
    axis = f"{{allow_kappa_change: true, shapes: [{shapes[name][:-1]}{more}}}]}}"
    hps = "hps: {multipliers: {router.init_mult: 0}}"
    return arm_of(spec_of({**REGIME_III, "tables": "mup-iii"}, axis=axis, options=options, hps=hps))


def test_the_largest_shape_stands_for_a_limit_whose_other_sizes_stay() -> None:
    assert "the width stays 16" in str(largest_instead(growing("experts")))
    assert "the width stays 16" in str(largest_instead(growing("expert_width", options="")))
    assert "num_experts stays 4, and a residual network has" in str(largest_instead(growing("width")))
    # Without a residual that is regime I, whose limit is solved, and so is that of all three together.
    assert largest_instead(growing("width", options="")) is None
    assert largest_instead(growing("all")) is None
    assert largest_instead(growing("experts")[:1]) is None
    with pytest.raises(HpxferError, match="depth must be the same at every shape of the axis, got 1, 2"):
        largest_instead(growing("experts", more=", depth: 2"))
    many, few = growing("experts", ", residual: true, router_bias: fixed")
    few = replace(few, shape=replace(few.shape, num_active=8))
    with pytest.raises(HpxferError, match="kappa must be the same at every shape of the axis"):
        largest_instead([few, many])


def test_all_reasons_of_a_trial_are_named_at_once() -> None:
    spec = spec_of(REGIME_I, hps="hps: {momentum: 0.9}", training=", weight_decay: 0.1")
    with pytest.raises(
        HpxferError, match=r"(?s)hps.momentum.*training.weight_decay|training.weight_decay.*hps.momentum"
    ):
        network_of(arm_of(spec))


def test_a_balancing_bias_is_refused_where_experts_are_chosen() -> None:
    spec = spec_of(REGIME_II, **HALF)
    model = spec.model.model_copy(update={"balance": spec.model.balance.model_copy(update={"bias": "proportional"})})
    with pytest.raises(HpxferError, match=r"model.balance.bias: must be none, got proportional"):
        network_of(arm_of(spec.model_copy(update={"model": model}), "mssp-ii"))


def of_setting(trial: Trial, **changed: Any) -> Trial:
    return replace(trial, setting=replace(trial.setting, **changed))


@pytest.mark.parametrize(
    ("change", "where", "says"),
    [
        (lambda trial: of_setting(trial, family="gpt"), slice(None), "limits are solved of the family mlp, got gpt"),
        # Its weights would be taken for those of a softmax.
        (lambda trial: of_setting(trial, gate="mine"), slice(None),
         "model.gate: must be one of sigmoid, softmax, normalized_softmax, got mine"),
        (lambda trial: of_setting(trial, precision="bfloat16"), slice(None),
         "training.precision: must be float32, got bfloat16"),
        (lambda trial: of_setting(trial, data_digest="fedcba"), slice(1),
         "data_digest must be the same at every shape"),
        (lambda trial: replace(trial, hps=replace(trial.hps, lr=0.5)), slice(1), "HPs must be the same"),
    ],
)  # fmt: skip
def test_trials_that_are_no_path_of_mlps_are_refused(change: Any, where: slice, says: str) -> None:
    trials = arm_of(spec_of(REGIME_I))
    trials[where] = [change(trial) for trial in trials[where]]
    with pytest.raises(HpxferError, match=says):
        network_of(trials)
