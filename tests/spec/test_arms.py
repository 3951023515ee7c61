"""Arms: what a sweep file may say of them, and the sweep that each of them stands for."""

from __future__ import annotations

import pytest
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.spec import dump_sweep, parse_sweep
from hpxfer.spec.arms import parts_of
from hpxfer.spec.base_values import base_values

TABLES = "[completep-moe, sp]"


def with_arm(arm: str, *edits: tuple[str, str]) -> str:
    return edited(*edits, (TABLES, f"[completep-moe, sp, {arm}]"))


def message_of(arm: str, *edits: tuple[str, str]) -> str:
    with pytest.raises(HpxferError) as caught:
        parse_sweep(with_arm(arm, *edits), "s.yaml")
    return str(caught.value)


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


@pytest.mark.parametrize(
    ("arm", "problem"),
    [
        ("{table: sp, name: a, hps: {lrr: 1}}", "[2].hps.lrr: unknown key; did you mean 'lr'?"),
        ("{table: sp, name: a, model: {}}", "[2].model: unknown key; legal: balance, conventions, hps, name, table"),
        ("{table: sp, name: a, hps: 3}", "[2].hps: must be a mapping, got 3"),
        ("{table: sp, hps: {init_scale: 2}}", "[2]: must have a name with hps or balance of its own"),
        ("{table: sp, name: 'a b', hps: {init_scale: 2}}", "[2].name: must be at most 40 letters"),
        ("{table: sp, name: a, hps: {multipliers: {lr: 2}}}", "[2].hps.multipliers.lr: must be a dotted name"),
        (
            "{table: sp, name: a, hps: {multipliers: {routr.lr_mult: 2}}}",
            "[2].hps.multipliers.routr.lr_mult: unknown role 'routr'; did you mean 'router'?",
        ),
        ("{table: sp, name: a, hps: {lr: 0}}", "[2].hps.lr: lr must be > 0, got 0"),
        ("{table: sp, name: a, hps: {momentum: 0.9}}", "[2].hps.momentum: momentum has no effect"),
        ("{table: sp, name: a, balance: {bias: sgn}}", "[2].balance.bias: must be"),
        ("{table: sp, name: a, balance: {aux: switch}}", "[2]: hps.aux_weight: must be given with"),
        ("{table: sp, name: a, hps: {aux_weight: 0.1}}", "[2].hps.aux_weight: aux_weight has no effect"),
        (
            "{table: sp, name: a, balance: {bias: none}, hps: {router_bias_lr: 0.1}}",
            "[2].hps.router_bias_lr: router_bias_lr has no effect: model.balance.bias is none",
        ),
        ("{table: sp, name: a, balance: {bias: none, load: last_step}}", "[2]: model.balance.load: goes with a loss"),
        ("{table: sq, name: a, hps: {init_scale: 2}}", "[2]: unknown parameterization 'sq'; did you mean 'sp'?"),
        ("sp", "[2]: sp stands twice; keep one"),
        ('"sp[x"', "[2]: unknown parameterization 'sp[x'"),
        ('"sp[x=1]"', "[2]: parameterization sp: unknown convention 'x'"),
    ],
)
def test_what_is_refused(arm: str, problem: str) -> None:
    message = message_of(arm)
    assert message.startswith(f"s.yaml:14: parameterizations{problem}"), message
    assert len(message.splitlines()) == 1


def test_two_arms_of_one_label_are_refused() -> None:
    arm = "{table: sp, name: a, hps: {init_scale: 2}}"
    assert message_of(f"{arm}, {arm}") == "s.yaml:14: parameterizations[3]: sp (a) stands twice; keep one"


def test_a_beta_that_a_table_moves_out_of_its_range_names_the_arm() -> None:
    edits = (("  width: [32, 64]", "  bigger: [{steps: 100}]"),)
    message = message_of("{table: complete-mue, name: fast, hps: {beta1: 0.4}}", *edits)
    assert message.startswith("s.yaml:14: parameterizations[2]: axes.bigger")
    assert "beta1 must be in [0, 1)" in message


def test_a_product_must_hold_the_base_values_of_every_arm() -> None:
    edits = (("  lr: [0.01]", "  lr: [0.01]\n  init_scale: [0.5, 1]\nproduct: true"),)
    parse_sweep(with_arm("{table: sp, name: small, hps: {init_scale: 0.5}}", *edits))
    message = message_of("{table: sp, name: small, hps: {init_scale: 0.25}}", *edits)
    assert message.startswith("s.yaml:14: parameterizations[2]: grid.init_scale: a product must hold the base value")


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


@pytest.mark.parametrize(
    ("hps", "arm", "fix"),
    [
        ("aux_weight: 0.02", "balance: {aux: switch}", "a loss"),
        ("router_bias_lr: 0.02", "balance: {bias: sign}", "a rule"),
    ],
)
def test_a_base_value_that_only_one_arm_reads_goes_into_the_arm(hps: str, arm: str, fix: str) -> None:
    def text(at_base: str, of_arm: str) -> str:
        base = ("  context: 64\n", "  context: 64\n  balance: {bias: none}\n")
        moved = ("  router_bias_lr: 0.01\n", f"  {at_base}\n")
        return with_arm(f"{{table: sp, name: a, {arm}{of_arm}}}", base, moved)

    with pytest.raises(HpxferError, match=f"give it in the hps of an arm with {fix}"):
        parse_sweep(text(hps, ""))
    parse_sweep(text("init_scale: 1", f", hps: {{{hps}}}"))


def test_a_grid_that_the_balance_of_an_arm_does_not_read_is_refused() -> None:
    scanned = (
        ("  lr: [0.01]", "  lr: [0.01]\n  router_bias_lr: [0.01, 0.02]"),
        ("_lr: 0.01\n", "_lr: 0.01\n  lr: 0.01\n"),
    )
    parse_sweep(with_arm("{table: sp, name: a, balance: {bias: sign}}", *scanned))
    message = message_of("{table: sp, name: a, balance: {bias: none}}", *scanned)
    assert message.startswith("s.yaml:14: parameterizations[2]: grid.router_bias_lr: router_bias_lr has no"), message
