"""The evaluator: laws that hold for every table, and what it refuses or warns of."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import choices, layouts

from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Globals, evaluate, evaluate_globals, parameterization, ratios, reference
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import PARAMETERIZATIONS

BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
FIXED_KAPPA = ("completep", "completep-moe")


def moved(**dims: int) -> Shape:
    return dataclasses.replace(BASE, **dims)


@given(layouts(), layouts())
def test_sp_multiplies_no_activation_and_no_rate(base: Shape, target: Shape) -> None:
    for numbers in evaluate(parameterization("sp"), base, target).values():
        assert (numbers.lr, numbers.eps, numbers.forward) == (1, 1, 1)


def test_completep_moe_does() -> None:
    numbers = evaluate(parameterization("completep-moe"), BASE, moved(width=64, depth=4))["attn_out"]
    assert 1 not in (numbers.lr, numbers.eps, numbers.forward)


@pytest.mark.parametrize("name", FIXED_KAPPA)
@given(data=st.data())
def test_no_init_and_no_lr_depends_on_the_number_of_experts(name: str, data: st.DataObject) -> None:
    choice = data.draw(choices(name))
    base, target, other = (data.draw(layouts("moe")) for _ in range(3))
    more = dataclasses.replace(target, num_experts=other.num_experts, num_active=other.num_active)
    before, after = evaluate(choice, base, target), evaluate(choice, base, more)
    assert all((before[role].init_std, before[role].lr) == (after[role].init_std, after[role].lr) for role in before)


def test_the_expert_branch_and_its_eps_do_depend_on_it() -> None:
    got = evaluate(parameterization("completep-moe"), BASE, moved(num_experts=8, num_active=2))
    assert (got["expert_out"].forward, got["expert_out"].eps) == (0.5, 0.5)


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


def test_every_spelling_of_a_choice_is_the_same_choice() -> None:
    plain = parameterization("completep-moe")
    assert parameterization("completep-moe", {"depth_alpha": 1}) == plain
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
        (
            "completep-moe",
            {"router_init_exponent": 0.75},
            "parameterization completep-moe: router_init_exponent must be 0.5 | 1.0 | inf, got 0.75",
        ),
        (
            "completep",
            {"depth_alpha": 0.4},
            "parameterization completep: depth_alpha must be a number from 0.5 to 1, got 0.4",
        ),
        (
            "completep",
            {"depth_alpha": "1"},
            "parameterization completep: depth_alpha must be a number from 0.5 to 1, got '1'",
        ),
        (
            "completep",
            {"depth_alpha": True},
            "parameterization completep: depth_alpha must be a number from 0.5 to 1, got True",
        ),
    ],
)
def test_refused_choices(name: str, conventions: dict[str, float | str], message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parameterization(name, conventions)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "name", [name for name in PARAMETERIZATIONS if "embeddings" in PARAMETERIZATIONS.get(name).conventions]
)
def test_conventions_that_exclude_each_other_are_refused(name: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parameterization(name, {"embeddings": "tied", "readout": "init_lr"})
    assert str(caught.value) == (
        f"parameterization {name}: embeddings: tied goes with readout: forward, got readout: init_lr; a tied tensor "
        "has no second init and LR"
    )
    assert parameterization(name, {"embeddings": "tied", "readout": "forward"})


@pytest.mark.parametrize(
    "name", [name for name in PARAMETERIZATIONS if "readout_init" in PARAMETERIZATIONS.get(name).conventions]
)
def test_a_tied_readout_does_not_start_at_zero(name: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parameterization(name, {"embeddings": "tied", "readout": "forward", "readout_init": "zero"})
    assert str(caught.value) == (
        f"parameterization {name}: embeddings: tied goes with readout_init: random, got readout_init: zero; a tied "
        "tensor starts as the embedding does"
    )
    assert parameterization(name, {"readout": "forward", "readout_init": "zero"})


@pytest.mark.parametrize(
    ("name", "convention", "value", "legal"),
    [
        ("mup", "readout", "forwards", "forward | init_lr"),
        ("mup", "embeddings", "Tied", "untied | tied"),
        ("mup", "weight_decay", 0.0, "source | coupled | independent"),
        ("mup", "eps", "per-role", "per_role | global | hidden"),
        ("completep", "depth_lr", "all", "block | matrices"),
        ("completep", "depth_alpha", math.nan, "a number from 0.5 to 1"),
        ("completep", "depth_alpha", math.inf, "a number from 0.5 to 1"),
        ("mup-moe", "router_init", "inf", "random | zero"),
        ("mup-moe", "router_eps_exponent", 1.0, "0.0 | 0.5"),
        ("mup-moe", "router_bias_std", -1.0, "a number from 0 to 100"),
        ("mssp-i", "router_bias_std", "1", "a number from 0 to 100"),
    ],
)
def test_refused_values_of_conventions(name: str, convention: str, value: float | str, legal: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parameterization(name, {convention: value})
    assert str(caught.value) == f"parameterization {name}: {convention} must be {legal}, got {value!r}"


def test_a_column_that_the_source_does_not_have_is_refused() -> None:
    with pytest.raises(HpxferError) as caught:
        evaluate(parameterization("completep-moe"), BASE, BASE, "sgd")
    assert str(caught.value) == "parameterization completep-moe: the source has no sgd column; it has: adam"


def test_label_names_what_differs_from_the_default() -> None:
    assert parameterization("completep-moe").label() == "completep-moe"
    choice = parameterization("completep-moe", {"router_init_exponent": "inf", "depth_alpha": 0.5})
    assert choice.label() == "completep-moe[depth_alpha=0.5,router_init_exponent=inf]"
