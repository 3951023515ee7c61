"""Ties: which tables of a sweep break them at random, and what a stored sweep says of them."""

from __future__ import annotations

import pytest
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.scaling.shape import Shape
from hpxfer.spec import SweepSpec, dump_sweep, parse_sweep
from hpxfer.spec.ties import choice_of, resolved, ties_at, ties_of

TABLES = "[completep-moe, sp]"
ZERO = "{table: completep-moe, conventions: {router_init_exponent: .inf}}"
ALL_ZERO = f"[mssp-i, {ZERO}, {{table: mup-moe, conventions: {{router_init: zero}}}}]"
SCHEDULE = "[{table: mssp-i, conventions: {router_bias_std: 1}}]"
SOFT = ("num_experts: 4, num_active: 1", "num_experts: 4, num_active: 4")
CONTEXT = "context: 64"


def sweep(tables: str = TABLES, *edits: tuple[str, str], ties: str | None = None) -> SweepSpec:
    given = [] if ties is None else [(CONTEXT, f"{CONTEXT}\n  ties: {ties}")]
    return parse_sweep(edited((TABLES, tables), *given, *edits))


def by_table(spec: SweepSpec) -> list[str]:
    return [ties_of(spec, choice_of(chosen)) for chosen in spec.parameterizations]


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (TABLES, ["index", "index"]),
        ("[mssp-i, sp]", ["random", "index"]),
        (ALL_ZERO, ["random"] * 3),
        (SCHEDULE, ["index"]),  # its bias breaks them
        ("[mup-i, mssp-ii, mup-moe]", ["index"] * 3),
    ],
)
def test_only_tables_with_a_zero_router_break_ties_at_random(tables: str, expected: list[str]) -> None:
    assert by_table(sweep(tables)) == expected


def test_a_sweep_decides_for_all_tables_or_for_some() -> None:
    assert by_table(sweep("[mssp-i, sp]", ties="fixed_bias")) == ["fixed_bias"] * 2
    assert by_table(sweep("[mssp-i, sp]", ties="{sp: random}")) == ["random", "random"]
    assert by_table(sweep("[mssp-i, sp]", ties="{mssp-i: index}")) == ["index", "index"]
    two = f"[{ZERO}, completep-moe]"
    assert by_table(sweep(two, ties="{'completep-moe[router_init_exponent=inf]': index}")) == ["index", "index"]
    assert by_table(sweep(two, ties="{completep-moe: fixed_bias}")) == ["fixed_bias", "fixed_bias"]


def test_nothing_is_broken_where_nothing_is_chosen() -> None:
    spec = sweep("[mssp-i, sp]")
    mssp = choice_of(spec.parameterizations[0])
    chosen = spec.base_shape
    soft = sweep("[mssp-i, sp]", SOFT).base_shape
    dense = Shape(width=32, depth=2, head_dim=32, dense_width=32)
    assert [ties_at(spec, mssp, shape) for shape in (chosen, soft, dense)] == ["random", "index", "index"]
    fixed = sweep("[mssp-i, sp]", ties="fixed_bias")  # it changes the gates of all experts
    assert [ties_at(fixed, mssp, shape) for shape in (chosen, soft, dense)] == ["fixed_bias", "fixed_bias", "index"]


def test_a_sweep_to_store_spells_out_what_is_not_by_index() -> None:
    assert resolved(sweep()).model.ties is None
    assert resolved(sweep("[mssp-i]")).model.ties == "random"
    spelled = resolved(sweep("[mssp-i, sp]"))
    assert spelled.model.ties == {"mssp-i": "random"}
    assert resolved(sweep(f"[{ZERO}, sp]")).model.ties == {"completep-moe[router_init_exponent=inf]": "random"}
    assert resolved(sweep("[mssp-i, sp]", ties="{sp: random}")).model.ties == "random"
    assert resolved(sweep("[mssp-i, sp]", ties="index")).model.ties == "index"
    assert resolved(sweep("[mssp-i, sp]", SOFT)).model.ties is None
    assert parse_sweep(dump_sweep(spelled), trusted=False) == spelled


@pytest.mark.parametrize(
    ("ties", "message"),
    [
        ("randm", "model.ties: must be index, random, fixed_bias, or a mapping of tables to one of them, got 'randm'"),
        ("{sp: 3}", "model.ties: must be index, random, fixed_bias, or a mapping of tables to one of them, got {'sp'"),
        ("[random]", "model.ties: must be index, random, fixed_bias, or a mapping of tables to one of them, got"),
        ("{mup: random}", "model.ties: must name tables of the sweep, got 'mup'; legal: completep-moe, sp"),
    ],
)
def test_what_is_no_value(ties: str, message: str) -> None:
    with pytest.raises(HpxferError) as raised:
        sweep(ties=ties)
    assert str(raised.value).count("\n") == 0
    assert f"<sweep>:6: {message}" in str(raised.value)


def test_a_dense_sweep_has_no_ties() -> None:
    dense = ("num_experts: 4, num_active: 1, expert_ratio: 1", "dense_ratio: 1")
    with pytest.raises(HpxferError, match=r"model.ties: has no effect: no shape of this sweep has experts"):
        sweep("[mup, sp]", dense, ties="random")
