"""The evaluator: laws that hold for every table, and what it refuses or warns of."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import shapes

from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import (
    Multipliers,
    Parameterization,
    coverage_warnings,
    evaluate,
    parameterization,
    ratios,
)
from hpxfer.scaling.table import Optimizer
from hpxfer.scaling.tables import TABLES
from hpxfer.shape import Shape

BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
ALPHAS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({"depth_alpha": st.floats(0.5, 1)})
CHOICES = st.one_of(
    st.just(parameterization("sp")),
    ALPHAS.map(lambda chosen: parameterization("completep", chosen)),
    st.builds(
        lambda chosen, gamma: parameterization("completep-moe", {**chosen, "router_init_exponent": gamma}),
        ALPHAS,
        st.sampled_from((0.5, 1.0, "inf")),
    ),
)
# Roles that start at exact zeros, and those that no weight decay touches.
ZERO_INIT = {"hidden_bias", "router_bias"}
NO_DECAY = {"position", "norm", "final_norm", "hidden_bias", "router_bias"}


def moved(**dims: int) -> Shape:
    return dataclasses.replace(BASE, **dims)


@pytest.mark.parametrize(("name", "optimizer"), [(name, one) for name in TABLES for one in TABLES[name].rows])
@given(shape=shapes())
def test_base_is_the_identity(name: str, optimizer: Optimizer, shape: Shape) -> None:
    for role, one in evaluate(parameterization(name), shape, shape, optimizer).items():
        assert one == Multipliers(
            init_std=0 if role in ZERO_INIT else 1,
            lr=1,
            eps=1,
            weight_decay=0 if role in NO_DECAY else 1,
            forward=1,
        ), role


@given(shapes())
def test_a_zero_router_is_another_model_at_the_base_too(shape: Shape) -> None:
    choice = parameterization("completep-moe", {"router_init_exponent": "inf"})
    got = evaluate(choice, shape, shape)
    assert {role for role, one in got.items() if one.init_std == 0} == {*ZERO_INIT, "router"}


@pytest.mark.parametrize("present", [True, False])
@given(choice=CHOICES, data=st.data())
def test_two_steps_are_one(present: bool, choice: Parameterization, data: st.DataObject) -> None:
    base, middle, target = (data.draw(shapes(present=present)) for _ in range(3))
    first, second = evaluate(choice, base, middle), evaluate(choice, middle, target)
    for role, whole in evaluate(choice, base, target).items():
        for field in dataclasses.fields(Multipliers):
            one, two, both = (getattr(part, field.name) for part in (first[role], second[role], whole))
            assert math.isclose(one * two, both, rel_tol=1e-12), (role, field.name)


@given(shapes(), shapes())
def test_sp_multiplies_no_activation_and_no_rate(base: Shape, target: Shape) -> None:
    for one in evaluate(parameterization("sp"), base, target).values():
        assert (one.lr, one.eps, one.forward) == (1, 1, 1)


def test_completep_moe_does() -> None:
    one = evaluate(parameterization("completep-moe"), BASE, moved(width=64, depth=4))["attn_out"]
    assert 1 not in (one.lr, one.eps, one.forward)


@given(shapes(), shapes(), shapes(), CHOICES)
def test_no_init_and_no_lr_depends_on_the_number_of_experts(
    base: Shape, target: Shape, other: Shape, choice: Parameterization
) -> None:
    more = dataclasses.replace(target, num_experts=other.num_experts, num_active=other.num_active)
    before, after = evaluate(choice, base, target), evaluate(choice, base, more)
    assert all((before[role].init_std, before[role].lr) == (after[role].init_std, after[role].lr) for role in before)


def test_the_expert_branch_and_its_eps_do_depend_on_it() -> None:
    got = evaluate(parameterization("completep-moe"), BASE, moved(num_experts=8, num_active=2))
    assert (got["expert_out"].forward, got["expert_out"].eps) == (0.5, 0.5)


def test_ratios() -> None:
    base = moved(dense_width=128)
    target = dataclasses.replace(base, width=64, expert_width=128, num_experts=8, num_active=2, shared_width=64)
    assert ratios(base, target) == {
        "width": 2,
        "depth": 1,
        "experts": 2,
        "active": 2,
        "expert_width": 4,
        "expert_ratio": 2,
        "dense_width": 1,
        "shared_width": 1,  # the base has none: nothing to compare with
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
    assert set(chosen) == set(TABLES[name].conventions)
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
        ("xyz", {}, "unknown parameterization 'xyz'; legal: completep, completep-moe, sp"),
        ("sp", {"depth_alpha": 1}, "parameterization sp: unknown convention 'depth_alpha'; it has none"),
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


def test_a_column_that_the_source_does_not_have_is_refused() -> None:
    with pytest.raises(HpxferError) as caught:
        evaluate(parameterization("completep-moe"), BASE, BASE, "sgd")
    assert str(caught.value) == "parameterization completep-moe: the source has no sgd column; it has: adam"


def test_label_names_what_differs_from_the_default() -> None:
    assert parameterization("completep-moe").label() == "completep-moe"
    choice = parameterization("completep-moe", {"router_init_exponent": "inf", "depth_alpha": 0.5})
    assert choice.label() == "completep-moe[depth_alpha=0.5,router_init_exponent=inf]"


@pytest.mark.parametrize(
    ("name", "dims", "warnings"),
    [
        ("completep-moe", {}, []),
        (
            "completep-moe",
            {"width": 64, "expert_width": 256, "depth": 8, "num_experts": 8, "num_active": 2},
            [],
        ),
        (
            "completep-moe",
            {"num_experts": 8},
            ["completep-moe holds kappa fixed: it goes from 0.25 to 0.125; transfer is not expected"],
        ),
        ("sp", {"num_experts": 8}, []),
        ("completep-moe", {"width": 64, "head_dim": 64}, ["completep-moe holds head_dim fixed: it goes from 32 to 64"]),
        ("sp", {"head_dim": 16}, ["sp holds head_dim fixed: it goes from 32 to 16"]),
        (
            "completep",
            {"num_experts": 8, "num_active": 2},
            [
                "completep does not cover experts: it changes by a factor of 2",
                "completep does not cover active: it changes by a factor of 2",
            ],
        ),
        ("completep", {"expert_width": 64}, ["completep does not cover expert_ratio: it changes by a factor of 2"]),
        ("completep", {"width": 64, "expert_width": 64, "depth": 4}, []),
    ],
)
def test_coverage_warnings(name: str, dims: dict[str, int], warnings: list[str]) -> None:
    base = moved()
    assert coverage_warnings(parameterization(name), base, moved(**dims)) == warnings
