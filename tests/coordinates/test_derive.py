"""What rows imply along a path: in step with what the papers claim, and without an exponent where none follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpxfer.coordinates.cases import Case, own_axes, own_case
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
from hpxfer.coordinates.measure import Observation, Prediction
from hpxfer.coordinates.path_facts import PathFacts, path_facts
from hpxfer.coordinates.predict import predict
from hpxfer.scaling.conventions import EMBEDDINGS
from hpxfer.scaling.evaluate import Parameterization, parameterization, ratios
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, width
from hpxfer.scaling.table import Column, Row, Table
from hpxfer.scaling.tables import PARAMETERIZATIONS

COLUMNS: list[tuple[str, Column]] = [
    (table.name, optimizer) for table in PARAMETERIZATIONS.rows() for optimizer in table.rows if table.name != "sp"
]
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
        gate=model.gate,
        gated=False,
        tied_embeddings=model.tied_embeddings,
        decays=False,
    )


def derived(table: Table, axis: str = "width", **facts: object) -> dict[tuple[str, str], Prediction]:
    """Return what the rows of a table imply for Adam along an axis, by role and quantity."""
    with PARAMETERIZATIONS.registered(replace(table, name="mine")):
        choice = parameterization("mine")
        found = derive(choice, "adam", replace(facts_of(case_of(choice, "adam", axis)), **facts))  # type: ignore[arg-type]
    return {(each.role, each.quantity): each for each in found}


def changed(role: str, **fields: Monomial) -> Table:
    """Return sp with other factors in one row."""

    def rows(conventions: object) -> tuple[Row, ...]:
        return tuple(
            replace(row, **fields) if row.role == role else row for row in SP.rows["adam"]({"lr_exponent": 0.0})
        )

    return replace(SP, rows={"adam": rows})


@pytest.mark.parametrize(("name", "optimizer"), COLUMNS)
def test_rows_imply_what_the_source_claims(name: str, optimizer: Column) -> None:
    """Every exponent that both give is the same, before training and after the first update."""
    choice, compared = parameterization(name), 0
    for axis in own_axes(choice, optimizer):
        case = case_of(choice, optimizer, axis)
        points = case.axis.points
        at = [ratios(case.spec.base_shape, point.shape) for point in points]
        claimed = predict(choice.claims(optimizer), [point.scale for point in points], at)
        for own in derive(choice, optimizer, facts_of(case)):
            seen = Observation(
                quantity=own.quantity, role=own.role, layer=None, step=own.first, scale=1.0, values=(1.0,)
            )
            theirs = next((each for each in claimed if each.is_about(seen)), None)
            if (
                theirs is None
                or (theirs.exponent is None and not theirs.zero)
                or (own.exponent is None and not own.zero)
            ):
                continue
            where = f"{axis}: {own.role} {own.quantity}"
            assert own.zero == theirs.zero, where
            assert own.exponent == pytest.approx(theirs.exponent, abs=1e-6), where
            compared += 1
    assert compared >= 20


def test_the_rows_of_sp_imply_how_it_blows_up() -> None:
    found = derived(SP)
    assert found["attn_q", "activation"].exponent == 0
    assert found["attn_q", "weight change"].exponent == 0
    assert found["attn_q", "gradient"].exponent == -0.5
    assert found["expert_out", "weight change"].exponent == 0
    for role in ("attn_q", "expert_in", "readout"):
        assert (found[role, "effective"].exponent, found[role, "effective"].source) == (None, INPUT_MOVES)


def test_a_row_moves_what_it_is_about_and_nothing_else() -> None:
    plain = derived(SP)
    steeper = derived(changed("attn_v", init_std=width**-1))
    assert {key for key in plain if plain[key] != steeper[key]} >= {
        ("attn_v", "activation"),
        ("attn_out", "activation"),
        ("attn_out", "gradient"),
    }
    assert steeper["attn_v", "activation"].exponent == -0.5
    assert steeper["expert_in", "activation"] == plain["expert_in", "activation"]
    learns = derived(changed("router", lr=width**-1))
    assert {key for key in plain if plain[key] != learns[key]} == {("router", "weight change"), ("router", "decay")}
    assert learns["router", "weight change"].exponent == -1


@pytest.mark.parametrize(
    ("table", "axis", "role", "quantity", "why"),
    [
        (changed("attn_q", init_std=ONE), "width", "attn_out", "activation", SATURATED),
        (changed("router", init_std=ONE), "width", "gates", "activation", LOGITS),
        (changed("readout", init_std=ONE), "width", "attn_q", "gradient", LOGITS),
        (changed("position", init_std=width**-0.5), "width", "stream", "activation", TWO_STARTS),
        (SP, "active", "expert_in", "gradient", SPARSE),
        (SP, "active", "expert_in", "effective", SPARSE),
    ],
)
def test_where_no_power_law_follows_the_reason_is_given(
    table: Table, axis: str, role: str, quantity: str, why: str
) -> None:
    found = derived(table, axis)[role, quantity]
    assert (found.exponent, found.zero, found.source) == (None, False, why)


def test_an_unknown_gate_and_tied_embeddings_have_reasons() -> None:
    assert derived(SP, gate_sums_over="unknown")["gates", "activation"].source == GATE
    tied = derived(replace(SP, conventions={**SP.conventions, "embeddings": EMBEDDINGS}), tied_embeddings=True)
    assert tied["embedding", "gradient"].source == TIED
    assert ("readout", "gradient") not in tied


def test_zeros_are_exact() -> None:
    frozen = derived(changed("attn_q", lr=ZERO))
    assert frozen["attn_q", "weight change"].zero
    silent = changed("readout", init_std=ZERO)
    found = derived(silent)
    assert found["readout", "activation"].zero
    assert found["attn_q", "gradient"].zero
    assert found["attn_q", "weight change"].zero
    assert found["readout", "weight change"].exponent == 0
    assert derived(silent, decays=True)["attn_q", "weight change"].source == DECAYS


def test_a_stream_that_starts_at_zero_has_no_inverse() -> None:
    rows = tuple(
        replace(row, init_std=ZERO) if row.role in ("embedding", "position") else row
        for row in SP.rows["adam"]({"lr_exponent": 0.0})
    )
    found = derived(replace(SP, rows={"adam": lambda conventions: rows}))
    assert found["embedding", "activation"].zero
    assert found["attn_q", "gradient"].exponent is None
    assert found["attn_q", "weight change"].exponent == 0


def test_a_row_that_is_absent_is_named() -> None:
    rows = tuple(row for row in SP.rows["adam"]({"lr_exponent": 0.0}) if row.role != "attn_k")
    found = derived(replace(SP, rows={"adam": lambda conventions: rows}))
    assert found["attn_k", "activation"].source == "the table has no row for attn_k"
    assert found["attn_out", "activation"].source == "the table has no row for attn_k"


def test_everything_else_has_a_reason_too() -> None:
    quantities = {(each.role, each.quantity) for each in NOT_DERIVED}
    assert quantities >= derived(SP).keys()
    assert {("attn_q", "propagating"), ("stream", "change")} <= quantities
    assert {each.source for each in NOT_DERIVED} == {FOLLOWS}
