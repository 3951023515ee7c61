"""Searches of a sweep with variants: each variant is searched from its own base values, and reads back as its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest
from searched import searched

from hpxfer.recipe import recipe_of
from hpxfer.report.provenance import provenance_table
from hpxfer.scaling.shape import Shape
from hpxfer.search import Outcome, make_search
from hpxfer.search.arms import arms_of
from hpxfer.search.joined import joined
from hpxfer.search.protocol import Progress
from hpxfer.spec import parse_sweep
from hpxfer.spec.variants import variants_of
from hpxfer.testing.searches import SWEEP, loss_of, run_search
from hpxfer.trial import DataRef, Expansion, Trial

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
VARIANTS = "hps: {lr: {log2: -7}}\nvariants: {default: {}, tuned: {hps: {multipliers: {attn_q.lr_mult: 4}}}}\n"
MULT = "attn_q.lr_mult"


@pytest.mark.parametrize("kind", CASES)
def test_every_variant_is_searched_as_a_sweep_of_its_own_and_reads_back(kind: str, tmp_path: Path) -> None:
    spec = parse_sweep(CASES[kind] + VARIANTS)
    expansion = Expansion(spec, DATA)
    ran = run_search(expansion)
    alone = [run_search(Expansion(under, DATA)).trials for _, under in variants_of(spec)]
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
    for variant, mult in (("default", 1.0), ("tuned", 4.0)):
        assert recipe_of(results, "completep-moe", variant).hps.get(MULT) == mult
    assert recipe_of(results, "completep-moe (tuned)").hps.get(MULT) == 4.0
    shown = str(provenance_table(results))
    assert "variant tuned" in shown
    assert f"{MULT} 4" in shown


def test_arms_of_variants_are_named_and_have_their_own_budget() -> None:
    arms = arms_of(Expansion(parse_sweep(CASES["random"] + VARIANTS), DATA))
    assert [arm.labels for arm in arms if arm.is_base] == [
        ("completep-moe", "sp"),
        ("completep-moe (tuned)", "sp (tuned)"),
    ]
    assert len(arms) == 2 + 4


class Asks:
    """A search from outside that decides by itself what it asks for."""

    def __init__(self, expansion: Expansion) -> None:
        self.trials = tuple(expansion.trials())

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        return tuple(trial for trial in self.trials if trial.id not in outcomes)

    def progress(self) -> Mapping[Shape, Progress]:
        return {self.trials[0].shape: Progress(1, 2)}

    def why(self) -> str:
        return "because"


def test_searches_of_any_make_stand_side_by_side() -> None:
    expansion = Expansion(parse_sweep(SWEEP + VARIANTS), DATA)
    both = joined(expansion, [Asks(part) for part in (*expansion.parts, expansion.parts[0])])
    assert [trial.id for trial in both.ask({}, ())] == [trial.id for trial in expansion.trials()]
    assert list(both.progress().values()) == [Progress(3, 6)]
    assert both.why() == "because\nbecause\nbecause"
    assert make_search(expansion).ask({}, ())
