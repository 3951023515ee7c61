"""The trials of arms with HPs or a balance of their own, and of tables that break ties: whose ids they have."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from made_results import DATA as MADE
from strategies import sweeps
from sweep_text import edited

from hpxfer.plan.packing import (
    Packer,
)
from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.spec.arms import ArmHPs
from hpxfer.spec.sweep import parts_of
from hpxfer.trial import Cell, DataRef, Expansion, Trial

DATA = DataRef(digest="d1", tokenizer="ascii", vocab_size=128)
VARIED = st.fixed_dictionaries(
    {},
    optional={
        "init_scale": st.sampled_from((0.5, 2.0)),
        "residual_scale": st.sampled_from((0.25, 4.0)),
        "multipliers": st.just({"embedding.lr_mult": 16.0}),
    },
)


def with_arms(spec: SweepSpec, **hps: dict[str, Any]) -> SweepSpec:
    """Return the sweep with each of its tables under other HPs too, and with the names of `hps`."""
    arms = [
        table.model_copy(update={"name": name, "hps": ArmHPs(**given)})
        for name, given in hps.items()
        for table in spec.parameterizations
    ]
    return spec.model_copy(update={"parameterizations": (*spec.parameterizations, *arms)})


def arms(own: str) -> str:
    """Return both tables, without and with something of their own."""
    return f"[completep-moe, sp, {{table: completep-moe, name: a, {own}}}, {{table: sp, name: a, {own}}}]"


def places(cells: list[Cell]) -> list[tuple[Any, ...]]:
    return [(cell.axis, cell.scale, cell.shape, cell.line, cell.trial.id) for cell in cells]


@given(sweeps(), VARIED)
def test_the_cells_of_an_arm_are_those_of_a_sweep_with_its_base_values(spec: SweepSpec, hps: dict[str, Any]) -> None:
    both = with_arms(spec, tuned=hps)
    cells, plain = list(Expansion(both, DATA).cells()), list(Expansion(spec, DATA).cells())
    half = len(plain)
    assert cells[:half] == plain
    (_, (_, under)) = parts_of(both)
    alone = list(Expansion(under, DATA).cells())
    assert places(cells[half:]) == places(alone)
    assert [cell.parameterization for cell in cells[half:]] == [f"{cell.parameterization} (tuned)" for cell in alone]


@given(sweeps(), VARIED)
def test_an_id_follows_from_the_hps_alone(spec: SweepSpec, hps: dict[str, Any]) -> None:
    """Arms with other names have the same trials. Arms with equal HPs share theirs."""
    one, other = with_arms(spec, tuned=hps), with_arms(spec, a=hps, b={})
    ids = [{trial.id for trial in Expansion(each, DATA).trials()} for each in (one, other)]
    assert ids[0] == ids[1]
    if not hps:
        assert ids[0] == {trial.id for trial in Expansion(spec, DATA).trials()}


def test_trials_that_two_arms_share_are_trained_once() -> None:
    """The grid scans init_scale, so both arms have the trials on the line of the other one's base value."""
    text = edited(
        ("router_bias_lr: 0.01\n", "lr: 0.01\n"),
        ("[completep-moe, sp]", arms("hps: {init_scale: 0.5}")),
        ("  lr: [0.01]", "  lr: [0.01, 0.02]\n  init_scale: [0.5, 1]"),
    )
    expansion = Expansion(parse_sweep(text), DATA)
    cells, trials = list(expansion.cells()), list(expansion.trials())
    # 4 points in either arm, of which the line of init_scale is the same, and meets the line of lr in each.
    assert len({(cell.trial.hps.lr, cell.trial.hps.init_scale) for cell in cells}) == 4
    assert len(trials) == len({cell.trial.id for cell in cells}) == 4 * 2 * 3
    assert list(expansion.arms) == ["completep-moe", "sp", "completep-moe (a)", "sp (a)"]


def test_arms_with_another_balance_have_trials_of_their_own() -> None:
    plain = parse_sweep(edited())
    expansion = Expansion(parse_sweep(edited(("[completep-moe, sp]", arms("balance: {bias: sign}")))), DATA)
    by_rule: dict[str, set[str]] = {}
    for trial in expansion.trials():
        by_rule.setdefault(trial.setting.balance.bias, set()).add(trial.id)
    assert by_rule["proportional"] == {trial.id for trial in Expansion(plain, DATA).trials()}
    assert len(by_rule["sign"]) == len(by_rule["proportional"])
    assert not by_rule["sign"] & by_rule["proportional"]
    spelled = parse_sweep(edited(("  context: 64\n", "  context: 64\n  balance: {bias: sign}\n")))
    assert by_rule["sign"] == {trial.id for trial in Expansion(spelled, DATA).trials()}


TWO = ("num_experts: 4, num_active: 1", "num_experts: 8, num_active: 2")
SOFT = ("num_experts: 4, num_active: 1", "num_experts: 4, num_active: 4")


def trials(tables: str, *edits: tuple[str, str], ties: str | None = None) -> dict[str | None, list[Trial]]:
    """Return table -> its trials."""
    given = [] if ties is None else [("context: 64", f"context: 64\n  ties: {ties}")]
    out: dict[str | None, list[Trial]] = {}
    for trial in Expansion(parse_sweep(edited(("[completep-moe, sp]", tables), *given, *edits)), MADE).trials():
        out.setdefault(trial.parameterization and trial.parameterization.name, []).append(trial)
    return out


def ids(found: list[Trial]) -> list[str]:
    return [trial.id for trial in found]


def test_a_control_keeps_its_ids_beside_a_zero_router() -> None:
    alone, beside = trials("[sp]", TWO), trials("[sp, mssp-i]", TWO)
    assert {trial.setting.ties for trial in beside["mssp-i"]} == {"random"}
    assert {trial.setting.ties for name in (None, "sp") for trial in beside[name]} == {"index"}
    assert [ids(beside[name]) for name in (None, "sp")] == [ids(alone[name]) for name in (None, "sp")]


def test_each_value_has_ids_of_its_own_and_index_those_of_the_time_before() -> None:
    found = {ties: trials("[mssp-i]", TWO, ties=ties)["mssp-i"] for ties in ("index", "random", "fixed_bias")}
    assert len({trial_id for each in found.values() for trial_id in ids(each)}) == 3 * len(found["index"])
    # The id of the first trial of this sweep, as version 0.1.0 of hpxfer gave it before there was `ties`.
    assert found["index"][0].id == "837d364c9b9a0f184b495bff2f4279e0"
    assert ids(trials("[mssp-i]", TWO)["mssp-i"]) == ids(found["random"])


def test_where_all_experts_are_active_the_ids_stay() -> None:
    assert ids(trials("[mssp-i]", SOFT)["mssp-i"]) == ids(trials("[mssp-i]", SOFT, ties="index")["mssp-i"])


def test_a_table_with_ties_of_its_own_shares_no_trial_at_the_base() -> None:
    both = trials("[completep-moe, sp]", TWO, ties="{completep-moe: random}")
    assert {trial.setting.ties for trial in both["completep-moe"]} == {"random"}
    assert len(both["completep-moe"]) == 2 * len(
        trials("[completep-moe, sp]", TWO)["completep-moe"]
    )  # the base is not shared
    assert None in trials("[completep-moe, sp]", TWO, ties="random")  # all tables have the same ties there


def test_trials_of_both_kinds_share_a_stack() -> None:
    mixed = [trial for found in trials("[sp, mssp-i]", TWO).values() for trial in found]
    stacks = list(Packer().pack(mixed))
    assert len(stacks) == 2  # one per shape
    assert {trial.setting.ties for trial in stacks[0].trials} == {"index", "random"}
    assert stacks[0].setting.ties == "index"
