"""Cautions: short, once, and only where there is something to know."""

from __future__ import annotations

import pytest
from made_results import DATA
from sweep_text import edited

from hpxfer.plan.cautions import cautions
from hpxfer.spec import parse_sweep
from hpxfer.trial import Expansion

TABLES = "[completep-moe, sp]"
AXIS = "  width: [32, 64]"
TWO = ("num_experts: 4, num_active: 1", "num_experts: 8, num_active: 2")
NORMALIZED = ("context: 64", "context: 64\n  gate: normalized_sigmoid")
SOFTMAX = ("context: 64", "context: 64\n  gate: softmax")
ALL_ACTIVE = ("num_experts: 4, num_active: 1", "num_experts: 4, num_active: 4")


def said(*edits: tuple[str, str]) -> tuple[str, ...]:
    return cautions(Expansion(parse_sweep(edited(*edits)), DATA))


def test_nothing_is_said_of_a_sweep_inside_its_table() -> None:
    assert said() == ()
    assert said(TWO, NORMALIZED, (TABLES, "[complete-mue, sp]")) == ()


def test_one_line_for_a_table_and_an_axis() -> None:
    (line,) = said((AXIS, "  duration: [400, 800]"))
    assert line == "completep-moe along duration: completep-moe does not cover duration: it changes by a factor of 4"
    several = "  long: [{steps: 400}, {steps: 800, num_groups: 2}]\n  duration: [400]"
    first, second = said((AXIS, several), TWO)
    assert first.startswith("completep-moe along long: completep-moe does not cover duration: ")
    assert "completep-moe does not cover groups: it goes from 1 to 2" in first
    assert second.startswith("completep-moe along duration: ")


def test_kappa_that_was_allowed_to_move_is_still_said() -> None:
    (line,) = said((AXIS, "  capacity: {values: [8], allow_kappa_change: true}"))
    assert line.startswith("completep-moe along capacity: ")
    assert "completep-moe holds kappa fixed: it goes from 0.25 to 0.125" in line


@pytest.mark.parametrize(
    ("edits", "more"),
    [
        ((), "; and at 1 more shape"),
        (((AXIS, "  width: [64, 128]"),), "; and at 2 more shapes"),
        ((TWO, (AXIS, "  experts: [4]")), ""),
    ],
)
def test_a_gate_that_is_constant(edits: tuple[tuple[str, str], ...], more: str) -> None:
    first, *_ = said(NORMALIZED, *edits, (TABLES, "[complete-mue]"))
    assert first == (
        "gate normalized_sigmoid with num_active 1 (w32 d2 E4A1 h32): the gate is constant, the router does not learn"
        + more
    )


def test_a_zero_router_is_cautioned_of_where_ties_go_to_the_lowest_index() -> None:
    tables, untied = (TABLES, "[mssp-i, sp]"), ("context: 64", "context: 64\n  tied_embeddings: false")
    regime_i = (AXIS, "  width: [64]")
    by_index = (untied[0], f"{untied[1]}\n  ties: {{mssp-i: index}}")
    assert said(tables, untied, regime_i) == ()
    (line,) = said(tables, by_index, regime_i)
    assert line.startswith("mssp-i starts from a zero router: where ties go to the lowest index, all tokens go to the ")
    assert "same 1 of 4 experts at first" in line


def test_what_the_control_holds_along_experts() -> None:
    experts = (AXIS, "  experts: [4, 16]")
    (line,) = said(experts)
    assert line.startswith(
        "sp along experts: sp keeps the base's divisor of the experts' sum: it divides the sum of 4 "
    )
    wider = (AXIS, "  experts: [8, 32]")
    assert said(wider, TWO, (TABLES, "[complete-mue, sp]"), NORMALIZED) == ()


def test_a_source_with_another_gate() -> None:
    (line,) = said(TWO, (TABLES, "[complete-mue, sp]"))
    assert line == (
        "complete-mue's gate sums to one over the active experts, and sigmoid does not, so the route scale has nothing "
        "to act on; take the gate normalized_sigmoid"
    )
    (line,) = said(TWO, SOFTMAX, (TABLES, "[complete-mue, sp]"))
    assert "softmax does over all" in line
    assert said(ALL_ACTIVE, SOFTMAX, (TABLES, "[complete-mue, sp]")) == ()
    dense = ("num_experts: 4, num_active: 1, expert_ratio: 1", "dense_ratio: 1")
    assert said(dense, (TABLES, "[complete-mue, sp]")) == ()


def test_what_is_wrong_at_the_base_is_said_once_and_of_no_axis() -> None:
    axes = (AXIS, "  width: [64]\n  wide: [{width: 64}]")
    soft = ("context: 64", "context: 64\n  gate: softmax\n  tied_embeddings: false")
    zero_router = ("[completep-moe, sp]", "[mssp-i, sp]")
    (line,) = said(ALL_ACTIVE, soft, axes, zero_router)
    assert line.startswith("mssp-i starts from a zero router, all 4 experts are active")
    sigmoid = ("context: 64", "context: 64\n  tied_embeddings: false")
    assert said(ALL_ACTIVE, sigmoid, axes, zero_router) == ()  # whose router moves
    both = said(ALL_ACTIVE, SOFTMAX, axes, zero_router)  # tied: a second line, and none of an axis
    assert len(both) == 2
    assert not any(" along " in caution for caution in both)
