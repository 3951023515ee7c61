"""Resolving: from base HPs to the absolute numbers of a tensor."""

from __future__ import annotations

import dataclasses

import pytest

from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Multipliers, parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.resolve import BaseInit, base_forward, base_init_std, resolve, resolve_globals
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.scaling.shape import Shape

BASE = Shape(width=64, depth=2, num_experts=8, num_active=2, expert_width=256, head_dim=32, dense_width=16)
TARGET = dataclasses.replace(BASE, width=256, depth=8, num_experts=32, num_active=8, expert_width=1024)
MOE = parameterization("completep-moe")
FAN_IN = BaseInit(embedding_std=0.3, position_std=0.4)
HPS = HPs(lr=0.5, init_scale=2.0, residual_scale=3.0, weight_decay=0.25, eps=1e-8, router_bias_lr=0.125)


def at_target(hps: HPs = HPS, init: BaseInit = FAN_IN) -> dict[str, Multipliers]:
    return resolve(MOE, BASE, TARGET, "adam", hps, init)


@pytest.mark.parametrize(
    ("role", "std"),
    [
        ("router", 2 / 8),  # init_scale * width^-1/2
        ("readout", 2 / 8),
        ("expert_in", 2 / 8),
        ("expert_out", 2 / 16),  # expert_width^-1/2
        ("dense_out", 2 / 4),  # dense_width^-1/2
        ("shared_out", 2 / 16),  # the base has no such matrix: held against a routed expert
        ("embedding", 0.3),  # not init_scale: that is for matrices
        ("position", 0.4),
        ("norm", 0.0),
        ("hidden_bias", 0.0),
        ("router_bias", 0.0),
    ],
)
def test_base_init_std_by_fan_in(role: str, std: float) -> None:
    assert base_init_std(role, BASE, FAN_IN, HPS) == std


def test_init_scale_may_act_on_embeddings_too() -> None:
    everything = dataclasses.replace(FAN_IN, scale_of="all")
    plain, scaled = at_target(), at_target(init=everything)
    assert {role for role in plain if plain[role] != scaled[role]} == {"embedding", "position"}
    assert (scaled["embedding"].init_std, scaled["position"].init_std) == (2 * 0.3, 2 * 0.4)
    assert at_target(dataclasses.replace(HPS, init_scale=1.0)) != plain
    still = dataclasses.replace(HPS, init_scale=1.0)
    assert at_target(still) == at_target(still, everything)


@pytest.mark.parametrize("role", ["router", "expert_out", "dense_out"])
def test_base_init_std_by_a_constant(role: str) -> None:
    assert base_init_std(role, BASE, BaseInit(matrices="constant", matrix_std=0.02), HPS) == 2 * 0.02


def test_init_mult_acts_on_its_role_alone() -> None:
    changed = HPS.with_value("attn_v.init_mult", 0.5).with_value("embedding.init_mult", 0.5)
    plain, other = at_target(), at_target(changed)
    assert {role for role in plain if plain[role] != other[role]} == {"attn_v", "embedding"}
    assert other["attn_v"].init_std == plain["attn_v"].init_std / 2
    assert other["embedding"].init_std == 0.3 / 2


def test_lr_mult_acts_on_its_role_alone() -> None:
    plain, other = at_target(), at_target(HPS.with_value("router.lr_mult", 1 / 16))
    assert {role for role in plain if plain[role] != other[role]} == {"router"}
    assert other["router"] == dataclasses.replace(plain["router"], lr=plain["router"].lr / 16)


def test_forward_mult_multiplies_what_its_role_gives_and_nothing_else() -> None:
    for role in ("embedding", "attn_out", "router", "expert_out", "readout"):
        plain, other = at_target(), at_target(HPS.with_value(f"{role}.forward_mult", 0.3))
        assert {name for name in plain if plain[name] != other[name]} == {role}
        assert other[role] == dataclasses.replace(plain[role], forward=pytest.approx(0.3 * plain[role].forward))


def test_the_balancing_rule_has_its_own_rate() -> None:
    got = at_target()
    assert (got["router_bias"].lr, got["embedding"].lr) == (0.125, 0.5)


def test_the_exponent_of_sp_is_none_of_the_rule_s_rate_but_one_of_a_trained_bias() -> None:
    choice = parameterization("sp", {"lr_exponent": 0.5})
    by_rule = resolve(choice, BASE, TARGET, "sgd", HPS, FAN_IN)
    assert (by_rule["router_bias"].lr, by_rule["router"].lr) == (0.125, 0.25)  # of 4 times the width
    trained = resolve(choice, BASE, TARGET, "sgd", HPS, FAN_IN, learned_bias_std=1.5)["router_bias"]
    assert (trained.lr, trained.init_std) == (0.25, 1.5)


def test_branches_hold_the_whole_product() -> None:
    """residual_scale, the base's 1/num_active and the table's factor; every other output is left alone."""
    assert base_forward("attn_out", BASE, HPS) == 3
    assert base_forward("expert_out", BASE, HPS) == 3 / 2
    assert base_forward("expert_in", BASE, HPS) == 1
    got = at_target()
    assert got["attn_out"].forward == 3 / 4  # m_L = 4
    assert got["expert_out"].forward == 3 / 2 / 4 / 4  # m_act = 4
    assert got["readout"].forward == 1 / 4
    # The twin: sp keeps the base's sum over active experts.
    assert resolve(parameterization("sp"), BASE, TARGET, "adam", HPS, FAN_IN)["expert_out"].forward == 3 / 2


def test_shared_and_routed_experts_are_averaged_by_the_base_s_number_of_active_ones() -> None:
    shared = dataclasses.replace(BASE, num_shared=2, shared_width=64)
    got = resolve(parameterization("sp"), shared, shared, "adam", HPS, FAN_IN)
    assert got["shared_out"].forward == got["expert_out"].forward == 3 / 2
    assert got["dense_out"].forward == got["attn_out"].forward == 3


def test_averages_over_the_active_experts_at_any_shape() -> None:
    got = resolve(MOE, BASE, dataclasses.replace(BASE, num_experts=32, num_active=8), "adam", HPs(lr=1.0), FAN_IN)
    assert got["expert_out"].forward == 1 / 8


def test_decay_and_eps_are_base_values_times_factors() -> None:
    got = at_target()
    assert got["expert_in"].weight_decay == 0.25 * 4
    assert got["norm"].weight_decay == 0
    assert got["attn_q"].eps == 1e-8 / 16
    assert got["expert_in"].eps == 1e-8 / 64


def test_a_dense_base_has_the_fan_in_of_its_ffn() -> None:
    """An expert that a dense base lacks is held against the FFN, at its fan-in and alone in its layer."""
    dense = Shape(width=64, depth=2, head_dim=32, dense_width=256)
    assert base_init_std("expert_out", dense, FAN_IN, HPS) == base_init_std("dense_out", dense, FAN_IN, HPS) == 2 / 16
    assert base_forward("expert_out", dense, HPS) == base_forward("dense_out", dense, HPS) == 3
    target = dataclasses.replace(BASE, dense_width=0, expert_width=64, num_experts=8, num_active=4)
    got = resolve(parameterization("complete-mue"), dense, target, "adam", HPS, FAN_IN)["expert_out"]
    assert (got.init_std, got.forward) == (2 / 16, 3)  # the same active width: 4 x 64


def test_route_scale_is_the_base_s_number_of_active_experts_times_the_factor() -> None:
    schedule = {"batch_tokens": 64, "steps": 10}
    base, target = (dataclasses.replace(shape, **schedule) for shape in (BASE, TARGET))
    scales = {
        name: resolve_globals(parameterization(name), base, target, HPS).route_scale for name in ("sp", "completep-moe")
    }
    assert scales == {"sp": 2, "completep-moe": 8}


def test_betas_follow_batch_and_duration() -> None:
    base = dataclasses.replace(BASE, batch_tokens=64, steps=100)
    hps = HPs(lr=1.0, beta1=0.9, beta2=0.95)
    mue = parameterization("complete-mue")
    longer = resolve_globals(mue, base, dataclasses.replace(base, steps=400), hps)
    assert (longer.beta1, longer.beta2) == pytest.approx((0.975, 0.9875))
    still = resolve_globals(mue, base, dataclasses.replace(base, width=128), hps)
    assert (still.beta1, still.beta2) == (0.9, 0.95)  # to the bit
    bigger = dataclasses.replace(base, batch_tokens=640, steps=10)
    assert resolve_globals(mue, base, bigger, hps).beta2 == pytest.approx(0.5)


def test_a_beta_that_leaves_its_range_is_refused() -> None:
    base = dataclasses.replace(BASE, batch_tokens=64, steps=100)
    bigger = dataclasses.replace(base, batch_tokens=1280, steps=5)
    with pytest.raises(HpxferError) as caught:
        resolve_globals(parameterization("complete-mue"), base, bigger, HPs(lr=1.0, beta1=0.9, beta2=0.99))
    assert str(caught.value) == (
        "complete-mue: beta1 must be in [0, 1), got -1: 1 - beta1 is 0.1 at the base and grows by 20 at "
        f"{bigger.label(schedule=True)}; take a larger beta1, or stay nearer to the base's batch and duration"
    )
    assert resolve_globals(parameterization("sp"), base, bigger, HPs(lr=1.0)).beta1 == 0.9


def test_fan_in_of_a_matrix() -> None:
    matrices = [role for role, kind in ROLES.items() if kind == "matrix"]
    other = {role: fan_in_dim(role) for role in matrices if fan_in_dim(role) != "width"}
    assert other == {
        "attn_out": "attention_width",
        "expert_out": "expert_width",
        "shared_out": "shared_width",
        "dense_out": "dense_width",
    }
