"""The evaluator and the resolver: laws, refusals, and from base HPs to the absolute numbers of a tensor."""

from __future__ import annotations

import dataclasses
import math

import pytest

from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import (
    BaseInit,
    Globals,
    Multipliers,
    base_forward,
    base_init_std,
    evaluate,
    evaluate_globals,
    parameterization,
    ratios,
    reference,
    resolve,
    resolve_globals,
)
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import PARAMETERIZATIONS

BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)


def moved(**dims: int) -> Shape:
    return dataclasses.replace(BASE, **dims)


def test_ratios() -> None:
    schedule = {"batch_tokens": 64, "steps": 100}
    base = moved(dense_width=128, num_shared=1, shared_width=32, **schedule)
    target = dataclasses.replace(
        base, width=64, expert_width=128, num_experts=8, num_active=2, shared_width=64, steps=50
    )
    target = dataclasses.replace(target, batch_tokens=256)
    assert ratios(base, target) == {
        "width": 2,
        "depth": 1,
        "experts": 2,
        "active": 2,
        "expert_width": 4,
        "expert_ratio": 2,
        "active_width": (64 + 2 * 128) / 64 / ((32 + 32) / 32),
        "shared_width": 2,
        "dense_width": 1,
        "dense_ratio": 0.5,
        "batch": 4,
        "duration": 2,  # tokens: four times the batch, half the steps
    }


def test_a_schedule_that_one_side_lacks_moves_nothing() -> None:
    at = ratios(moved(), moved(batch_tokens=64, steps=100))
    assert (at["batch"], at["duration"]) == (1, 1)


def test_a_dense_ffn_that_the_base_lacks_is_held_against_all_that_is_active() -> None:
    base = moved(num_active=2)
    at = ratios(base, moved(num_active=2, dense_width=4 * base.active_width))
    assert (at["dense_width"], at["dense_ratio"]) == (4, 4)


def test_a_dense_ffn_is_one_expert_that_is_always_active() -> None:
    dense = Shape(width=32, depth=2, head_dim=32, dense_width=128)
    at = ratios(dense, moved(num_active=2, expert_width=64))
    assert (at["experts"], at["active"], at["expert_width"], at["active_width"]) == (4, 2, 0.5, 1)
    assert reference(dense).shared_width == 128
    assert reference(moved()).shared_width == 32


def test_the_factors_that_belong_to_no_role() -> None:
    base = moved(batch_tokens=64, steps=100)
    target = dataclasses.replace(base, num_experts=16, num_active=4, batch_tokens=128, steps=400)
    got = {
        name: evaluate_globals(parameterization(name), base, target) for name in ("sp", "completep-moe", "complete-mue")
    }
    assert got == {
        "sp": Globals(route_scale=1, one_minus_beta=1),
        "completep-moe": Globals(route_scale=4, one_minus_beta=1),
        "complete-mue": Globals(route_scale=4, one_minus_beta=1 / 4),
    }


@pytest.mark.parametrize(
    ("name", "conventions"),
    [
        ("completep", {"depth_alpha": 0.75}),
        ("completep", {"depth_alpha": 1}),
        ("completep-moe", {"router_init_exponent": "inf"}),
        ("completep-moe", {"router_init_exponent": math.inf}),
    ],
)
def test_accepted_conventions(name: str, conventions: dict[str, float | str]) -> None:
    chosen = dict(parameterization(name, conventions).conventions)
    assert set(chosen) == set(PARAMETERIZATIONS.get(name).conventions)
    ((key, value),) = conventions.items()
    assert chosen[key] == ("inf" if value == math.inf else value)
    plain = parameterization("completep-moe")
    assert parameterization("completep-moe", {"router_init_exponent": 1, "depth_alpha": 1.0}) == plain
    assert parameterization("completep-moe", {"depth_alpha": 0.5}) != plain


@pytest.mark.parametrize(
    ("name", "conventions", "message"),
    [
        ("completp", {}, "unknown parameterization 'completp'; did you mean 'completep'?"),
        (
            "xyz",
            {},
            "unknown parameterization 'xyz'; legal: complete-mue, completep, completep-moe, mssp-i, mssp-ii, mssp-iii, "
            "mup, mup-i, mup-ii, mup-iii, mup-moe, ntp, sp",
        ),
        ("sp", {"depth_alpha": 1}, "parameterization sp: unknown convention 'depth_alpha'; legal: lr_exponent"),
        (
            "completep-moe",
            {"router_init": 1},
            "parameterization completep-moe: unknown convention 'router_init'; did you mean 'router_init_exponent'?",
        ),
    ],
)
def test_refused_choices(name: str, conventions: dict[str, float | str], message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parameterization(name, conventions)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("convention", "value", "legal", "why"),
    [
        ("readout", "init_lr", "forward", "a tied tensor has no second init and LR"),
        ("readout_init", "zero", "random", "a tied tensor starts as the embedding does"),
    ],
)
def test_conventions_that_exclude_each_other_are_refused(convention: str, value: str, legal: str, why: str) -> None:
    tables = [name for name in PARAMETERIZATIONS if convention in PARAMETERIZATIONS.get(name).conventions]
    tables = [name for name in tables if "embeddings" in PARAMETERIZATIONS.get(name).conventions]
    assert len(tables) > 3
    for name in tables:
        tied = {"embeddings": "tied", "readout": "forward"}
        with pytest.raises(HpxferError) as caught:
            parameterization(name, {**tied, convention: value})
        said = f"tied goes with {convention}: {legal}, got {convention}: {value}; {why}"
        assert str(caught.value) == f"parameterization {name}: embeddings: {said}"
        assert parameterization(name, {**tied, convention: legal})
        assert parameterization(name, {convention: value})


@pytest.mark.parametrize(
    ("name", "convention", "value", "legal"),
    [
        ("mup", "readout", "forwards", "forward | init_lr"),
        ("mup", "weight_decay", 0.0, "source | coupled | independent"),
        ("completep-moe", "router_init_exponent", 0.75, "0.5 | 1.0 | inf"),
        ("completep", "depth_alpha", 0.4, "a number from 0.5 to 1"),
        ("completep", "depth_alpha", True, "a number from 0.5 to 1"),
        ("completep", "depth_alpha", math.nan, "a number from 0.5 to 1"),
        ("mup-moe", "router_init", "inf", "random | zero"),
        ("mup-moe", "router_bias_std", -1.0, "a number from 0 to 100"),
    ],
)
def test_refused_values_of_conventions(name: str, convention: str, value: float | str, legal: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parameterization(name, {convention: value})
    assert str(caught.value) == f"parameterization {name}: {convention} must be {legal}, got {value!r}"


def test_a_column_that_the_source_does_not_have_is_refused() -> None:
    with pytest.raises(HpxferError) as caught:
        evaluate(parameterization("completep-moe"), BASE, BASE, "sgd")
    assert str(caught.value) == "parameterization completep-moe: the source has no sgd column; it has: adam, muon"


def test_label_names_what_differs_from_the_default() -> None:
    assert parameterization("completep-moe").label() == "completep-moe"
    choice = parameterization("completep-moe", {"router_init_exponent": "inf", "depth_alpha": 0.5})
    assert choice.label() == "completep-moe[depth_alpha=0.5,router_init_exponent=inf]"


WIDE = Shape(width=64, depth=2, num_experts=8, num_active=2, expert_width=256, head_dim=32, dense_width=16)
TARGET = dataclasses.replace(WIDE, width=256, depth=8, num_experts=32, num_active=8, expert_width=1024)
MOE = parameterization("completep-moe")
FAN_IN = BaseInit(embedding_std=0.3, position_std=0.4)
HPS = HPs(lr=0.5, init_scale=2.0, residual_scale=3.0, weight_decay=0.25, eps=1e-8, router_bias_lr=0.125)


def at_target(hps: HPs = HPS, init: BaseInit = FAN_IN) -> dict[str, Multipliers]:
    return resolve(MOE, WIDE, TARGET, "adam", hps, init)


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
    assert base_init_std(role, WIDE, FAN_IN, HPS) == std
    if ROLES[role] == "matrix":
        assert base_init_std(role, WIDE, BaseInit(matrices="constant", matrix_std=0.02), HPS) == 2 * 0.02


def test_init_scale_may_act_on_embeddings_too() -> None:
    everything = dataclasses.replace(FAN_IN, scale_of="all")
    plain, scaled = at_target(), at_target(init=everything)
    assert {role for role in plain if plain[role] != scaled[role]} == {"embedding", "position"}
    assert (scaled["embedding"].init_std, scaled["position"].init_std) == (2 * 0.3, 2 * 0.4)
    assert at_target(dataclasses.replace(HPS, init_scale=1.0)) != plain
    still = dataclasses.replace(HPS, init_scale=1.0)
    assert at_target(still) == at_target(still, everything)


@pytest.mark.parametrize(
    ("role", "name", "field"),
    [
        *(("attn_v", "init_mult", "init_std"), ("embedding", "init_mult", "init_std"), ("router", "lr_mult", "lr")),
        *((role, "forward_mult", "forward") for role in ("embedding", "attn_out", "router", "expert_out", "readout")),
    ],
)
def test_a_multiplier_acts_on_one_number_of_its_role_alone(role: str, name: str, field: str) -> None:
    plain, other = at_target(), at_target(HPS.with_value(f"{role}.{name}", 0.3))
    assert {name for name in plain if plain[name] != other[name]} == {role}
    by = pytest.approx(0.3 * getattr(plain[role], field))
    assert other[role] == dataclasses.replace(plain[role], **{field: by})


def test_the_balancing_rule_has_its_own_rate() -> None:
    got = at_target()
    assert (got["router_bias"].lr, got["embedding"].lr) == (0.125, 0.5)


def test_the_exponent_of_sp_is_none_of_the_rule_s_rate_but_one_of_a_trained_bias() -> None:
    choice = parameterization("sp", {"lr_exponent": 0.5})
    by_rule = resolve(choice, WIDE, TARGET, "sgd", HPS, FAN_IN)
    assert (by_rule["router_bias"].lr, by_rule["router"].lr) == (0.125, 0.25)  # of 4 times the width
    trained = resolve(choice, WIDE, TARGET, "sgd", HPS, FAN_IN, learned_bias_std=1.5)["router_bias"]
    assert (trained.lr, trained.init_std) == (0.25, 1.5)


def test_branches_hold_the_whole_product() -> None:
    """residual_scale, the base's 1/num_active and the table's factor; every other output is left alone."""
    assert base_forward("attn_out", WIDE, HPS) == 3
    assert base_forward("expert_out", WIDE, HPS) == 3 / 2
    assert base_forward("expert_in", WIDE, HPS) == 1
    got = at_target()
    assert got["attn_out"].forward == 3 / 4  # m_L = 4
    assert got["expert_out"].forward == 3 / 2 / 4 / 4  # m_act = 4
    assert got["readout"].forward == 1 / 4
    # The twin: sp keeps the base's sum over active experts.
    assert resolve(parameterization("sp"), WIDE, TARGET, "adam", HPS, FAN_IN)["expert_out"].forward == 3 / 2


def test_shared_and_routed_experts_are_averaged_by_the_base_s_number_of_active_ones() -> None:
    shared = dataclasses.replace(WIDE, num_shared=2, shared_width=64)
    got = resolve(parameterization("sp"), shared, shared, "adam", HPS, FAN_IN)
    assert got["shared_out"].forward == got["expert_out"].forward == 3 / 2
    assert got["dense_out"].forward == got["attn_out"].forward == 3


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
    target = dataclasses.replace(WIDE, dense_width=0, expert_width=64, num_experts=8, num_active=4)
    got = resolve(parameterization("complete-mue"), dense, target, "adam", HPS, FAN_IN)["expert_out"]
    assert (got.init_std, got.forward) == (2 / 16, 3)  # the same active width: 4 x 64


def test_route_scale_is_the_base_s_number_of_active_experts_times_the_factor() -> None:
    schedule = {"batch_tokens": 64, "steps": 10}
    base, target = (dataclasses.replace(shape, **schedule) for shape in (WIDE, TARGET))
    for name, scale in (("sp", 2), ("completep-moe", 8)):
        assert resolve_globals(parameterization(name), base, target, HPS).route_scale == scale


def test_betas_follow_batch_and_duration() -> None:
    base = dataclasses.replace(WIDE, batch_tokens=64, steps=100)
    hps = HPs(lr=1.0, beta1=0.9, beta2=0.95)
    mue = parameterization("complete-mue")
    longer = resolve_globals(mue, base, dataclasses.replace(base, steps=400), hps)
    assert (longer.beta1, longer.beta2) == pytest.approx((0.975, 0.9875))
    still = resolve_globals(mue, base, dataclasses.replace(base, width=128), hps)
    assert (still.beta1, still.beta2) == (0.9, 0.95)  # to the bit
    bigger = dataclasses.replace(base, batch_tokens=640, steps=10)
    assert resolve_globals(mue, base, bigger, hps).beta2 == pytest.approx(0.5)


def test_a_beta_that_leaves_its_range_is_refused() -> None:
    base = dataclasses.replace(WIDE, batch_tokens=64, steps=100)
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
