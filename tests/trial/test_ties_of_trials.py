"""Ties are part of a trial's identity, and move the ids of no table that meets none."""

from __future__ import annotations

from made_results import DATA
from sweep_text import edited

from hpxfer.plan.packing import pack
from hpxfer.spec import parse_sweep
from hpxfer.trial import Expansion, Trial

TABLES = "[completep-moe, sp]"
TWO = ("num_experts: 4, num_active: 1", "num_experts: 8, num_active: 2")
SOFT = ("num_experts: 4, num_active: 1", "num_experts: 4, num_active: 4")


def trials(tables: str, *edits: tuple[str, str], ties: str | None = None) -> dict[str | None, list[Trial]]:
    """Return table -> its trials."""
    given = [] if ties is None else [("context: 64", f"context: 64\n  ties: {ties}")]
    out: dict[str | None, list[Trial]] = {}
    for trial in Expansion(parse_sweep(edited((TABLES, tables), *given, *edits)), DATA).trials():
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
    both = trials(TABLES, TWO, ties="{completep-moe: random}")
    assert {trial.setting.ties for trial in both["completep-moe"]} == {"random"}
    assert len(both["completep-moe"]) == 2 * len(trials(TABLES, TWO)["completep-moe"])  # the base is not shared
    assert None in trials(TABLES, TWO, ties="random")  # all tables have the same ties there


def test_trials_of_both_kinds_share_a_stack() -> None:
    mixed = [trial for found in trials("[sp, mssp-i]", TWO).values() for trial in found]
    stacks = list(pack(mixed))
    assert len(stacks) == 2  # one per shape
    assert {trial.setting.ties for trial in stacks[0].trials} == {"index", "random"}
    assert stacks[0].setting.ties == "index"
