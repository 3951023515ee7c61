"""Resolving: from base HPs to the absolute numbers of a tensor."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from strategies import shapes

from hpxfer.hps import HPs
from hpxfer.scaling.evaluate import Multipliers, evaluate, parameterization
from hpxfer.scaling.resolve import BaseInit, base_forward, base_init_std, resolve
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.shape import Shape

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
        ("shared_out", 0.0),  # the base has no such matrix
        ("embedding", 0.3),  # not init_scale: that is for matrices
        ("position", 0.4),
        ("norm", 0.0),
        ("hidden_bias", 0.0),
        ("router_bias", 0.0),
    ],
)
def test_base_init_std_by_fan_in(role: str, std: float) -> None:
    assert base_init_std(role, BASE, FAN_IN, HPS) == std


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


def test_the_balancing_rule_has_its_own_rate() -> None:
    got = at_target()
    assert (got["router_bias"].lr, got["embedding"].lr) == (0.125, 0.5)


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


def test_averages_over_the_active_experts_at_any_shape() -> None:
    got = resolve(MOE, BASE, dataclasses.replace(BASE, num_experts=32, num_active=8), "adam", HPs(lr=1.0), FAN_IN)
    assert got["expert_out"].forward == 1 / 8


def test_decay_and_eps_are_base_values_times_factors() -> None:
    got = at_target()
    assert got["expert_in"].weight_decay == 0.25 * 4
    assert got["norm"].weight_decay == 0
    assert got["attn_q"].eps == 1e-8 / 16
    assert got["expert_in"].eps == 1e-8 / 64


@given(shapes())
def test_all_tables_agree_at_the_base(shape: Shape) -> None:
    moe, plain = (
        resolve(parameterization(name), shape, shape, "adam", HPS, FAN_IN) for name in ("completep-moe", "sp")
    )
    assert moe == {role: plain[role] for role in moe}


def test_they_do_not_elsewhere() -> None:
    plain = resolve(parameterization("sp"), BASE, TARGET, "adam", HPS, FAN_IN)
    assert at_target() != {role: plain[role] for role in evaluate(MOE, BASE, TARGET)}


def test_fan_in_of_a_matrix() -> None:
    matrices = [role for role, kind in ROLES.items() if kind == "matrix"]
    other = {role: fan_in_dim(role) for role in matrices if fan_in_dim(role) != "width"}
    assert other == {"expert_out": "expert_width", "shared_out": "shared_width", "dense_out": "dense_width"}
