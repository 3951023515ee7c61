"""Searches of arms with HPs of their own: each is searched from its own base values, and reads back as its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from searched import searched

from hpxfer.recipe import recipe_of
from hpxfer.report.provenance import provenance_table
from hpxfer.search.arms import arms_of
from hpxfer.spec import parse_sweep
from hpxfer.spec.arms import parts_of
from hpxfer.testing.searches import SWEEP, loss_of, run_search
from hpxfer.trial import DataRef, Expansion

DATA = DataRef(digest="suite", tokenizer="ascii", vocab_size=128)
BOX = SWEEP.replace("{lr: {log2: [-9, -4]}}", "{lr: {log2: [-9, -4]}, init_scale: {log2: [-1, 2]}}")
CASES = {
    "grid": SWEEP,
    "random": BOX + "search: {kind: random, budget: 8}\n",
    "optuna": BOX + "search: {kind: optuna, budget: 8}\n",
    "refine": SWEEP + "search: {kind: refine, max_octaves: 2}\n",
    "coordinate": SWEEP + "search: {kind: coordinate, multipliers: [router.lr_mult]}\n",
    "staged-grid": SWEEP + "search: {kind: staged-grid, multipliers: [init_scale]}\n",
    "verdict": SWEEP + "search: {kind: verdict, budget: 12}\n",
}
HPS = "hps: {lr: {log2: -7}}\n"
ARM = "{{table: {}, name: tuned, hps: {{multipliers: {{attn_q.lr_mult: 4}}}}, balance: {{bias: sign}}}}"
TABLES = "[completep-moe, sp]"
ARMS = f"[completep-moe, sp, {ARM.format('completep-moe')}, {ARM.format('sp')}]"
MULT = "attn_q.lr_mult"


@pytest.mark.first
@pytest.mark.parametrize("kind", CASES)
def test_every_arm_is_searched_as_in_a_sweep_of_its_own_and_reads_back(kind: str, tmp_path: Path) -> None:
    spec = parse_sweep(CASES[kind].replace(TABLES, ARMS) + HPS)
    expansion = Expansion(spec, DATA)
    ran = run_search(expansion)
    alone = [run_search(Expansion(under, DATA)).trials for _, under in parts_of(spec)]
    if kind != "verdict":  # which looks at all arms together
        assert set(ran.trials) == {*alone[0], *alone[1]}
    assert {trial.hps.get(MULT) for trial in ran.trials.values()} == {1.0, 4.0}
    assert set(alone[0]).isdisjoint(alone[1])
    results = searched(expansion, loss_of, tmp_path)
    mult_of = {trial.id: trial.hps.get(MULT) for trial in ran.trials.values()}
    cells = results.cells[results.cells["status"] != "missing"]
    assert set(cells["parameterization"]) >= {"completep-moe", "completep-moe (tuned)"}
    for label, trial_id in zip(cells["parameterization"], cells["trial_id"], strict=True):
        assert mult_of[trial_id] == (4.0 if label.endswith("(tuned)") else 1.0)
    for label, mult, rule in (("completep-moe", 1.0, "proportional"), ("completep-moe (tuned)", 4.0, "sign")):
        made = recipe_of(results, label)
        assert (made.hps.get(MULT), made.file.model.bias_rule) == (mult, rule)
    assert ("completep-moe (tuned)", f"{MULT} 4") in provenance_table(results).rows


def test_arms_of_a_name_have_their_own_budget() -> None:
    arms = arms_of(Expansion(parse_sweep(CASES["random"].replace(TABLES, ARMS) + HPS), DATA))
    assert [arm.labels for arm in arms if arm.is_base] == [
        ("completep-moe", "sp"),
        ("completep-moe (tuned)", "sp (tuned)"),
    ]
    assert len(arms) == 2 + 4
