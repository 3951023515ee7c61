"""Every shipped search passes the conformance suite, and broken twins fail it."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from hpxfer.search import Outcome
from hpxfer.search.grid import GRID, GridSearch
from hpxfer.search.kinds import SEARCHES, SearchKind, Stored
from hpxfer.testing.searches import SWEEP, SearchSuite
from hpxfer.trial import Expansion, Trial

BOX = SWEEP.replace("grid: {lr", "hps: {lr: 0.01}\ngrid: {init_scale: {log2: [-2, 2]}, lr")
SHIPPED = {
    "grid": SWEEP,
    "random": BOX + "search: {kind: random, budget: 14}\n",
    "optuna": BOX + "search: {kind: optuna, budget: 20, sampler: CmaEs}\n",
    "refine": BOX + "search: {kind: refine, max_octaves: 2}\n",
    "coordinate": SWEEP + "search: {kind: coordinate, multipliers: [router.lr_mult, attn_v.init_mult]}\n",
    "verdict": SWEEP + "search: {kind: verdict, budget: 12}\n",
    "staged-grid": SWEEP + "search: {kind: staged-grid, multipliers: [init_scale], recenters: 1}\n",
}


def test_every_shipped_search_is_tested() -> None:
    assert set(SHIPPED) == set(SEARCHES)


@pytest.mark.parametrize("name", list(SHIPPED))
class TestShipped(SearchSuite):
    @pytest.fixture
    def kind(self, name: str) -> SearchKind:
        return SEARCHES.get(name)

    @pytest.fixture
    def sweep(self, name: str) -> str:
        return SHIPPED[name]


class Broken(GridSearch):
    """A grid that breaks a rule."""

    def __init__(self, expansion: Expansion, rule: str) -> None:
        super().__init__(expansion)
        self.rule = rule
        self.lucky = set(random.sample([trial.id for trial in self.trials], len(self.trials) // 2))

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        asked = list(super().ask(outcomes, running))
        match self.rule:
            case "asks for trials that are running":
                return [trial for trial in self.trials if trial.id not in outcomes]
            case "depends on luck":
                return [trial for trial in asked if trial.id in self.lucky]
            case "depends on the order":
                return asked if len(outcomes) < 10 or next(reversed(outcomes)) < "8" else []
            case "asks for one seed alone":
                return [trial for trial in asked if trial.seed == 0]
        return asked


@pytest.mark.parametrize(
    ("rule", "test"),
    [
        ("asks for trials that are running", "test_it_asks_for_trials_of_the_sweep"),
        ("depends on luck", "test_a_run_that_was_stopped_goes_on_to_the_same_end"),
        ("depends on the order", "test_neither_order_nor_parallelism_changes_what_is_asked_for"),
        ("asks for one seed alone", "test_no_arm_exceeds_its_budget"),
    ],
)
def test_a_broken_twin_fails(rule: str, test: str) -> None:
    def make(expansion: Expansion, stored: Stored) -> GridSearch:
        return Broken(expansion, rule)

    kind = replace(GRID, name="broken", make=make)
    with pytest.raises(AssertionError):
        getattr(SearchSuite(), test)(kind, SWEEP + "search: broken\n")


def test_a_kind_that_says_too_little_of_itself_fails() -> None:
    small = replace(
        GRID, name="broken", size=lambda spec: 2, lists_trials=False, problems=lambda spec, why_not: iter(())
    )
    with pytest.raises(AssertionError):
        SearchSuite().test_no_arm_exceeds_its_budget(small, SWEEP + "search: broken\n")
    silent = replace(GRID, name="broken", lists_trials=False)
    with pytest.raises(AssertionError, match="must say why"):
        SearchSuite().test_it_says_what_it_decided(silent, SWEEP + "search: broken\n")
