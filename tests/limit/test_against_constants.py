"""The network that trials approach is read off their numbers: by hand, under other bases, and under another table."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from limit_sweeps import REGIME_I, REGIME_II, REGIME_III, arm_of, spec_of

from hpxfer.errors import HpxferError
from hpxfer.limit.against import network_of
from hpxfer.limit.against.constants import constants_of
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.scaling.tables.mssp import MSSP_II

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
    near = network_of(arm_of(spec_of(REGIME_II), "mssp-ii"))
    far = network_of(
        arm_of(
            spec_of(
                REGIME_II,
                base="{width: 32, depth: 1, num_experts: 16, num_active: 16, expert_width: 2}",
                axis="{shapes: [{width: 64, num_experts: 32, expert_width: 2}]}",
                hps=f"hps: {{multipliers: {{embedding.lr_mult: 2, expert_out.lr_mult: 4, readout.lr_mult: 0.5, "
                f"expert_out.init_mult: {2**0.5}, readout.init_mult: {2**-0.5}}}}}",
            ),
            "mssp-ii",
        )
    )
    for role in ("embedding", "router", "expert_in", "expert_out", "readout"):
        assert far.std(role) == pytest.approx(near.std(role), rel=1e-9)
        assert far.rate(role) == pytest.approx(near.rate(role), rel=1e-9)


def test_a_table_is_known_by_its_numbers_and_not_by_its_name() -> None:
    mine = replace(MSSP_II, name="mine", regime=None)
    with PARAMETERIZATIONS.registered(mine):
        found = network_of(arm_of(spec_of(REGIME_II, tables="mine")))
    assert found == network_of(arm_of(spec_of(REGIME_II), "mssp-ii"))


@pytest.mark.parametrize("table", ["sp", "ntp"])
@pytest.mark.parametrize("regime", [REGIME_I, REGIME_II, REGIME_III])
def test_a_control_approaches_no_limit(regime: dict[str, str], table: str) -> None:
    with pytest.raises(HpxferError, match=r"must approach a limit: those of .* got over those of .* at width 16 and"):
        network_of(arm_of(spec_of(regime, tables=table)))


def test_the_table_of_another_regime_is_refused() -> None:
    """Negative twin: the trials of regime II with the LRs of muP in regime I."""
    with pytest.raises(HpxferError, match="expert_out LR"):
        network_of(arm_of(spec_of(REGIME_II, tables="mup")))


def test_a_readout_of_zero_is_a_constant_of_zero() -> None:
    found = network_of(arm_of(spec_of(REGIME_II, hps="hps: {multipliers: {readout.init_mult: 0}}"), "mssp-ii"))
    assert found.std("readout") == 0.0
    assert math.isclose(found.rate("readout"), 16)


def test_the_factor_of_an_average_over_all_is_part_of_the_aggregation() -> None:
    """Half of the experts are active. Under 1/M the sum has half the factor, which is the aggregation's."""
    base = "{width: 16, depth: 1, num_experts: 8, num_active: 4, expert_width: 2}"
    axis = "{shapes: [{width: 32, num_experts: 16, num_active: 8, expert_width: 2}]}"
    one, other = (
        network_of(arm_of(spec_of(REGIME_II, base=base, axis=axis, options=f", aggregation: {each}"), "mssp-ii"))
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
