"""Arms, and the sweep that each of them stands for; ties, and which tables break them at random."""

from __future__ import annotations

import pytest
from sweep_text import edited

from hpxfer.scaling.shape import Shape
from hpxfer.spec import SweepSpec, dump_sweep, parse_sweep
from hpxfer.spec.sweep import base_values, parts_of
from hpxfer.spec.ties import choice_of, resolved, ties_at, ties_of

TABLES = "[completep-moe, sp]"


def with_arm(arm: str, *edits: tuple[str, str]) -> str:
    return edited(*edits, (TABLES, f"[completep-moe, sp, {arm}]"))


def test_an_arm_moves_the_base_values_that_it_names_and_no_others() -> None:
    hps = "{lr: 0.5, weight_decay: 0.1, beta2: 0.99, multipliers: {router.lr_mult: 2}}"
    multipliers = "  multipliers: {router.lr_mult: 4, attn_q.lr_mult: 3}\n"
    spec = parse_sweep(with_arm(f"{{table: sp, name: tuned, hps: {hps}}}", ("  router_bias_lr: 0.01\n", multipliers)))
    (first, plain), (name, tuned) = parts_of(spec)
    assert (first, name) == (None, "tuned")
    assert [arm.table for arm in plain.parameterizations] == ["completep-moe", "sp"]
    assert all(arm.is_plain for arm in (*plain.parameterizations, *tuned.parameterizations))
    assert base_values(plain) == base_values(spec)
    moved = {"lr": 0.5, "weight_decay": 0.1, "beta2": 0.99, "router.lr_mult": 2.0}
    assert base_values(tuned) == {**base_values(spec), **moved}
    assert parse_sweep(dump_sweep(spec)) == spec


def test_a_bare_name_is_an_arm_without_more_and_brackets_hold_conventions() -> None:
    spec = parse_sweep(edited((TABLES, '["completep-moe[depth_alpha=0.5, router_init_exponent=inf]", {table: sp}]')))
    tuned, control = spec.parameterizations
    assert (tuned.table, tuned.conventions) == ("completep-moe", {"depth_alpha": 0.5, "router_init_exponent": "inf"})
    assert control == parse_sweep(edited()).parameterizations[1]
    assert parts_of(spec) == ((None, spec),)
    assert parse_sweep(dump_sweep(spec)) == spec


def test_an_arm_has_a_balance_of_its_own() -> None:
    arms = (
        "{table: sp, name: sign, balance: {bias: sign}}",
        "{table: sp, name: loss, balance: {bias: none, aux: switch}, hps: {aux_weight: 0.1}}",
    )
    spec = parse_sweep(with_arm(", ".join(arms)))
    plain, sign, switch = (under for _, under in parts_of(spec))
    rules = [(under.model.balance.bias, under.model.balance.aux) for under in (plain, sign, switch)]
    assert rules == [("proportional", "none"), ("sign", "none"), ("none", "switch")]
    assert [base_values(under)["aux_weight"] for under in (plain, sign, switch)] == [0.0, 0.0, 0.1]
    assert parse_sweep(dump_sweep(spec)) == spec


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
