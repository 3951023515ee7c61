"""Exponents along a path: what rows imply, in step with what the papers claim, and what a good table does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hpxfer.coordinates.cases import Case, own_case
from hpxfer.coordinates.derive import (
    DECAYS,
    FOLLOWS,
    GATE,
    INPUT_MOVES,
    LOGITS,
    NOT_DERIVED,
    SATURATED,
    SPARSE,
    TIED,
    TWO_STARTS,
    derive,
)
from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.networks import gpt_network
from hpxfer.coordinates.path_facts import PathFacts, exponent_of, path_facts
from hpxfer.coordinates.sizes import NO_INVERSE, Size, grows, largest, led_by, power_of, product, sum_of
from hpxfer.coordinates.sizes import ZERO as NULL
from hpxfer.coordinates.stability import SHARES, stability
from hpxfer.scaling.conventions import EMBEDDINGS
from hpxfer.scaling.evaluate import Parameterization, parameterization, ratios
from hpxfer.scaling.monomial import ONE, SYMBOLS, ZERO, Monomial, active, depth, experts, width
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column, Table
from hpxfer.scaling.tables import PARAMETERIZATIONS

SP = PARAMETERIZATIONS.get("sp")


def case_of(choice: Parameterization, optimizer: Column, axis: str) -> Case:
    dense = not any(row.role == "router" for row in choice.rows(optimizer))
    return own_case(choice, optimizer, axis, None, dense=dense)


def facts_of(case: Case) -> PathFacts:
    points, model = case.axis.points, case.spec.model
    return path_facts(
        case.spec.base_shape,
        [point.shape for point in points],
        [point.scale for point in points],
        network=gpt_network(points[-1].shape, gated=False),
        gate=model.gate,
        tied_embeddings=model.tied_embeddings,
        decays=False,
    )


def derived(table: Table, axis: str = "width", **facts: object) -> dict[tuple[str, str], Prediction]:
    """Return what the rows of a table imply for Adam along an axis, by role and quantity."""
    with PARAMETERIZATIONS.registered(replace(table, name="mine")):
        choice = parameterization("mine")
        found = derive(choice, "adam", replace(facts_of(case_of(choice, "adam", axis)), **facts))  # type: ignore[arg-type]
    return {(each.role, each.quantity): each for each in found}


def changed(*roles: str, **fields: Monomial) -> Table:
    """Return sp with other factors in some rows, or without these rows."""
    rows = SP.rows["adam"]({"lr_exponent": 0.0})
    new = (replace(row, **fields) if row.role in roles else row for row in rows if fields or row.role not in roles)
    made = tuple(new)
    return replace(SP, rows={"adam": lambda conventions: made})


def test_a_row_moves_what_it_is_about_and_nothing_else() -> None:
    plain = derived(SP)
    steeper = derived(changed("attn_v", init_std=width**-1))
    moved = {key for key in plain if plain[key] != steeper[key]}
    assert moved >= {("attn_v", "activation"), ("attn_out", "activation"), ("attn_out", "gradient")}
    assert steeper["attn_v", "activation"].exponent == -0.5
    assert steeper["expert_in", "activation"] == plain["expert_in", "activation"]
    learns = derived(changed("router", lr=width**-1))
    assert {key for key in plain if plain[key] != learns[key]} == {("router", "weight change"), ("router", "decay")}
    assert learns["router", "weight change"].exponent == -1


SILENT = changed("readout", init_std=ZERO)
TIED_SP = replace(SP, conventions={**SP.conventions, "embeddings": EMBEDDINGS})
NO_STREAM = changed("embedding", "position", init_std=ZERO)


@pytest.mark.parametrize(
    ("table", "facts", "role", "quantity", "expected"),
    [
        # sp blows up.
        (SP, {}, "attn_q", "activation", 0),
        (SP, {}, "attn_q", "weight change", 0),
        (SP, {}, "attn_q", "gradient", -0.5),
        (SP, {}, "expert_out", "weight change", 0),
        (SP, {}, "attn_q", "effective", INPUT_MOVES),
        (SP, {}, "expert_in", "effective", INPUT_MOVES),
        (SP, {}, "readout", "effective", INPUT_MOVES),
        # Where no power law follows the reason is given.
        (changed("attn_q", init_std=ONE), {}, "attn_out", "activation", SATURATED),
        (changed("router", init_std=ONE), {}, "gates", "activation", LOGITS),
        (changed("readout", init_std=ONE), {}, "attn_q", "gradient", LOGITS),
        (changed("position", init_std=width**-0.5), {}, "stream", "activation", TWO_STARTS),
        (SP, {"axis": "active"}, "expert_in", "gradient", SPARSE),
        (SP, {"axis": "active"}, "expert_in", "effective", SPARSE),
        (SP, {"gate_sums_over": "unknown"}, "gates", "activation", GATE),
        (TIED_SP, {"tied_embeddings": True}, "embedding", "gradient", TIED),
        (changed("attn_k"), {}, "attn_k", "activation", "the table has no row for attn_k"),
        (changed("attn_k"), {}, "attn_out", "activation", "the table has no row for attn_k"),
        # Zeros are exact. A stream that starts at zero has no inverse.
        (changed("attn_q", lr=ZERO), {}, "attn_q", "weight change", ZERO),
        (SILENT, {}, "readout", "activation", ZERO),
        (SILENT, {}, "attn_q", "gradient", ZERO),
        (SILENT, {}, "attn_q", "weight change", ZERO),
        (SILENT, {}, "readout", "weight change", 0),
        (SILENT, {"decays": True}, "attn_q", "weight change", DECAYS),
        (NO_STREAM, {}, "embedding", "activation", ZERO),
        (NO_STREAM, {}, "attn_q", "gradient", None),
        (NO_STREAM, {}, "attn_q", "weight change", 0),
    ],
)
def test_what_follows_from_rows(table: Table, facts: Any, role: str, quantity: str, expected: Any) -> None:
    found = derived(table, **facts)[role, quantity]
    assert found.zero == (expected is ZERO)
    if expected is None or isinstance(expected, str):
        assert found.exponent is None
        assert found.source == expected or expected is None
    elif expected is not ZERO:
        assert found.exponent == expected


def test_everything_else_has_a_reason_too() -> None:
    quantities = {(each.role, each.quantity) for each in NOT_DERIVED}
    assert quantities >= derived(SP).keys()
    assert {("attn_q", "propagating"), ("stream", "change")} <= quantities
    assert {each.source for each in NOT_DERIVED} == {FOLLOWS}
    assert ("readout", "gradient") not in derived(TIED_SP, tied_embeddings=True)


# Exponents combine as sizes do; a reason goes through, and an exact zero stays one.


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        *((product(1.0, -0.5), 0.5), (product(), 0.0), (product(1.0, NULL), NULL)),
        *((product(1.0, "why", "other"), "why"), (product(NULL, "why"), "why")),
        # A sum needs parts that scale alike.
        *((sum_of("unlike", 0.5, 0.5), 0.5), (sum_of("unlike", 0.5, NULL), 0.5), (sum_of("unlike", NULL, NULL), NULL)),
        *((sum_of("unlike", 0.5, 0.0), "unlike"), (sum_of("unlike", 0.5, "why"), "why")),
        # A leader outgrows the rest or there is none.
        *((led_by(0.0, -0.5, NULL, why="led"), 0.0), (led_by(0.0, 0.0, why="led"), 0.0)),
        *((led_by(0.0, 0.5, why="led"), "led"), (led_by(0.0, "why", why="led"), "why")),
        *((led_by("why", 0.5, why="led"), "why"), (power_of(0.5, -1), -0.5), (power_of(NULL, -1), NO_INVERSE)),
        *((power_of("why", 2), "why"), (largest(-1.0, 0.5, NULL), 0.5), (largest(-1.0, "why"), "why")),
    ],
)
def test_sizes_combine(found: Size, expected: Size) -> None:
    assert found == expected


def test_what_grows() -> None:
    assert [grows(size) for size in (0.5, 0.0, -0.5, NULL, "why")] == [True, False, False, False, False]


# From monomials to exponents.

BASE = Shape(width=32, depth=2, num_experts=4, num_active=2, expert_width=32, head_dim=8)


def along(size: Monomial, *changes: dict[str, int]) -> float:
    shapes = [BASE, *(replace(BASE, **change) for change in changes)]
    scales = [float(shape.width * shape.num_experts) for shape in shapes]
    return exponent_of([size(ratios(BASE, shape)) for shape in shapes], scales)


WIDTHS = ({"width": 64}, {"width": 128})
JOINT = ({"width": 64, "num_experts": 8, "num_active": 4}, {"width": 128, "num_experts": 16, "num_active": 8})


def test_exponents_follow_the_path() -> None:
    assert along(width**-0.5, *WIDTHS) == -0.5
    assert along(depth**-1, *WIDTHS) == 0
    assert along(width * experts**-1, *JOINT) == 0
    assert along(width * active, *JOINT) == pytest.approx(1.0)  # the scale moves as width * experts
    assert along(experts**0.5, *JOINT) == pytest.approx(0.25)


def test_a_monomial_that_is_no_power_of_the_scale_gets_the_slope_that_would_be_measured() -> None:
    assert 0 < along(experts, {"width": 64}, {"width": 64, "num_experts": 16, "num_active": 8}) < 1


# What a good table does along an axis: it depends on the axis alone, and on no row.

Found = Mapping[tuple[str, str], Prediction]


def good(optimizer: Column = "adam", *, late: int = 0, kappa_moves: bool = False, **exponents: float) -> Found:
    symbols = {**dict.fromkeys((*SYMBOLS, "shared"), 0.0), **exponents}
    model = {"network": gpt_network(BASE, gated=False), "tied_embeddings": False, "decays": False}
    facts = PathFacts(symbols=symbols, kappa_moves=kappa_moves, gate_sums_over=None, **model)  # type: ignore[arg-type]
    return {(each.role, each.quantity): each for each in stability(facts, optimizer, late=late)}


def test_along_width_all_is_flat_and_outputs_may_vanish() -> None:
    found = good(width=1.0)
    assert {each.exponent for each in found.values()} == {0.0}
    parts = {"stream", "gates", "moe", "dense", "attn_gate", "shared_router", "router_logit_bias"}
    assert {role for role, _ in found} <= {*ROLES, *parts}


@pytest.mark.parametrize(
    ("asked", "role", "quantity", "expected"),
    [
        ({"width": 1.0}, "attn_q", "effective", {"bound": "equal"}),
        ({"width": 1.0}, "router", "effective", {"bound": "equal"}),
        ({"width": 1.0}, "router", "activation", {"bound": "at most"}),
        # Along depth the sum over blocks is flat.
        ({"depth": 1.0}, "attn_out", "effective", {"exponent": -1}),
        ({"depth": 1.0}, "expert_out", "aggregate effective", {"exponent": -1}),
        ({"depth": 1.0}, "moe", "activation", {"exponent": -0.5}),
        ({"depth": 1.0}, "attn_q", "effective", {"exponent": 0}),
        ({"depth": 1.0}, "stream", "change", {"exponent": 0}),
        # What experts learn is left open where they see another share of the tokens.
        ({"kappa_moves": True}, "router", "effective", {"exponent": None, "source": SPARSE}),
        ({"kappa_moves": True}, "expert_in", "effective", {"exponent": None, "source": SPARSE}),
        ({"kappa_moves": True}, "expert_out", "aggregate effective", {"exponent": None, "source": SPARSE}),
        ({"shared": 1.0}, "shared_out", "effective", {"source": SHARES}),
        # With SGD experts and routers may start slowly.
        ({"optimizer": "sgd"}, "expert_in", "effective", {"bound": "at most"}),
        ({"optimizer": "sgd"}, "attn_q", "effective", {"bound": "equal"}),
        # Behind a zero readout changes count from the second update.
        ({"late": 1}, "attn_q", "effective", {"first": 2}),
        ({"late": 1}, "stream", "change", {"first": 2}),
        ({"late": 1}, "readout", "effective", {"first": 1}),
    ],
)
def test_what_a_good_table_does(asked: Any, role: str, quantity: str, expected: dict[str, Any]) -> None:
    found = good(**asked)[role, quantity]
    assert {name: getattr(found, name) for name in expected} == expected
