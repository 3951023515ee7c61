"""What holds of every search, the suite that says so, and broken twins."""

from __future__ import annotations

import inspect
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from landscape import LR, Landscape, expansion_of, run, search_of
from laws import examples

from hpxfer.search import Outcome
from hpxfer.search.grid import GRID, WholeGrid
from hpxfer.search.kinds import SEARCHES, SearchKind, Stored
from hpxfer.search.rounds import RoundSearch
from hpxfer.testing.searches import SWEEP, SearchSuite, expanded, run_search
from hpxfer.trial import Expansion, Trial

LANDSCAPE = Landscape(
    optima={"lr": -6.3, "router.lr_mult": -3.0, "init_scale": 1.0}, drift=-1.0, noise=0.01, walls={"lr": -4.5}
)
TWO_HPS = "{log2: [-9, -4]}\n  init_scale: {log2: [-2, 2]}"
SWEEPS = {
    "grid": expansion_of(LR),
    "grid at the base": expansion_of(LR, search="{kind: grid, at: base}"),
    "random": expansion_of(LR, search="{kind: random, budget: 13}"),
    "random of two": expansion_of(("[0.01]", TWO_HPS), search="{kind: random, points: 6, sequence: uniform}"),
    "random pairs": expansion_of(
        ("[0.01]", TWO_HPS), search="{kind: random-pairs, points: 5, pairs: {points: 3, ratio: 2}}"
    ),
    "refine": expansion_of(LR, search="refine"),
    "refine with a budget": expansion_of(LR, search="{kind: refine, budget: 21}"),
    "refine of two": expansion_of(
        ("[0.01]", TWO_HPS), ("hps:", "hps:\n  lr: 0.02"), search="{kind: refine, budget: 37, until_octaves: 0.2}"
    ),
    "coordinate": expansion_of(
        LR, search="{kind: coordinate, passes: 2, multipliers: [attn_v.init_mult, router.lr_mult]}"
    ),
    "coordinate with a budget": expansion_of(
        LR, search="{kind: coordinate, at: all, budget: 25, multipliers: [router.lr_mult, attn_v.init_mult]}"
    ),
    "verdict": expansion_of(LR, search="{kind: verdict, budget: 12}"),
    # Both lines run through the same trials, which the first one asks for.
    "verdict of two": expansion_of(
        ("[0.01]", TWO_HPS), ("hps:", "hps:\n  lr: 0.015625"), search="{kind: verdict, budget: 14}"
    ),
    "staged grid": expansion_of(LR, search="{kind: staged-grid, multipliers: [init_scale, router.lr_mult]}"),
    "staged grid with a budget": expansion_of(
        LR, search="{kind: staged-grid, budget: 85, multipliers: [init_scale, router.lr_mult]}"
    ),
}
NAMES = sorted(SWEEPS)


def in_one_go(name: str) -> tuple[frozenset[str], str]:
    """Return the ids that a search asks for if nothing disturbs it, and its reasons."""
    ran = run(SWEEPS[name], LANDSCAPE)
    return frozenset(ran.trials), ran.search.why()


@pytest.fixture(scope="module")
def complete() -> dict[str, tuple[frozenset[str], str]]:
    return {name: in_one_go(name) for name in NAMES}


@settings(max_examples=examples(30))
@given(data=st.data())
def test_a_stopped_run_ends_the_same(complete: Mapping[str, tuple[frozenset[str], str]], data: st.DataObject) -> None:
    """Whatever failed in it, and in whichever order and how many at a time trials ran; others' results play no part."""
    name, unlucky = data.draw(st.sampled_from(NAMES)), data.draw(st.integers(0, 15))
    order, at_once = random.Random(data.draw(st.integers(0, 2**32))), data.draw(st.sampled_from((1, 3, 16, None)))
    first = run(
        *(SWEEPS[name], LANDSCAPE),
        known={"unknown": Outcome("diverged")},
        fails=lambda trial: int(trial.id[:8], 16) % 8 == unlucky,
        order=order,
        at_once=at_once,
        stop_after=data.draw(st.none() | st.integers(0, 60)),
    )
    second = run(SWEEPS[name], LANDSCAPE, known=first.outcomes, order=order, at_once=at_once)
    assert not first.outcomes.keys() & second.trials.keys(), "a trial was trained twice"
    assert frozenset(first.trials) <= complete[name][0]
    assert frozenset(first.outcomes) - {"unknown"} | frozenset(second.trials) == complete[name][0]
    assert second.search.why() == complete[name][1]


def test_other_outcomes_in_the_same_mapping_object_or_another_are_seen() -> None:
    """A search may keep what it has read of a mapping that grows; of another one it must start anew."""
    search = search_of(SWEEPS["refine"])
    ran = run(SWEEPS["refine"], LANDSCAPE)
    assert search.ask(ran.outcomes, ()) == ()
    again = search.ask({}, ())
    assert {trial.id for trial in again} == {trial.id for trial in search_of(SWEEPS["refine"]).ask({}, ())}


RAISED = {
    "random": ("{kind: random, budget: %d}", (8, 12, 30)),
    "refine": ("{kind: refine, until_octaves: 0.1, budget: %d}", (14, 20, 26, 60)),
    "coordinate": ("{kind: coordinate, multipliers: [router.lr_mult, attn_v.init_mult], budget: %d}", (12, 20, 28)),
    "staged-grid": ("{kind: staged-grid, multipliers: [init_scale, router.lr_mult], budget: %d}", (80, 100, 200)),
}


def sweep_with(kind: str, budget: int) -> Expansion:
    return expansion_of(LR, search=RAISED[kind][0] % budget)


@pytest.mark.parametrize("kind", sorted(RAISED))
def test_a_budget_that_is_raised_goes_on_and_loses_nothing(kind: str) -> None:
    known: dict[str, Outcome] = {}
    landscape = replace(LANDSCAPE, optima={**LANDSCAPE.optima, "init_scale": -15.0})
    for budget in RAISED[kind][1]:
        ran = run(sweep_with(kind, budget), landscape, known=known)
        at_once = run(sweep_with(kind, budget), landscape)
        assert frozenset(ran.trials) == frozenset(at_once.trials) - known.keys()
        assert max(at_once.arms().values()) <= budget
        known = ran.outcomes
    smallest = run(sweep_with(kind, RAISED[kind][1][0]), landscape)
    assert len(known) > len(smallest.trials), "the larger budgets bought nothing"


BOX = SWEEP.replace("grid: {lr", "hps: {lr: 0.01}\ngrid: {init_scale: {log2: [-2, 2]}, lr")
SHIPPED = {
    "grid": SWEEP,
    "random": BOX + "search: {kind: random, budget: 14}\n",
    "random-pairs": BOX + "search: {kind: random-pairs, points: 6, pairs: {points: 3, ratio: 2}}\n",
    "optuna": BOX + "search: {kind: optuna, budget: 20, sampler: CmaEs}\n",
    "refine": BOX + "search: {kind: refine, max_octaves: 2}\n",
    "coordinate": SWEEP + "search: {kind: coordinate, multipliers: [router.lr_mult, attn_v.init_mult]}\n",
    "verdict": SWEEP + "search: {kind: verdict, budget: 12}\n",
    "staged-grid": SWEEP + "search: {kind: staged-grid, multipliers: [init_scale], recenters: 1}\n",
}


def test_every_shipped_search_is_tested() -> None:
    assert set(SHIPPED) == set(SEARCHES)


# The laws above hold a verdict to the same in fewer runs.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "verdict" else ()) for name in SHIPPED]
)
class TestShipped(SearchSuite):
    @pytest.fixture
    def kind(self, name: str) -> SearchKind:
        return SEARCHES.get(name)

    @pytest.fixture
    def sweep(self, name: str) -> str:
        return SHIPPED[name]


class Broken(RoundSearch):
    """A grid that breaks a rule."""

    def __init__(self, expansion: Expansion, rule: str) -> None:
        super().__init__([WholeGrid(expansion)])
        self.rule, self.trials = rule, tuple(expansion.trials())
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


def hold(kind: SearchKind, test: str) -> None:
    """Hold a kind to one test of the suite."""
    method = getattr(SearchSuite(), test)
    with expanded(kind, SWEEP + "search: broken\n") as expansion:
        given = {"kind": kind, "expansion": expansion, "complete": run_search(expansion)}
        method(**{name: given[name] for name in inspect.signature(method).parameters})


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
    def make(expansion: Expansion, stored: Stored) -> RoundSearch:
        return Broken(expansion, rule)

    kind = replace(GRID, name="broken", make=make)
    with pytest.raises(AssertionError):
        hold(kind, test)


def test_a_kind_that_says_too_little_of_itself_fails() -> None:
    small = replace(
        GRID, name="broken", size=lambda spec: 2, lists_trials=False, problems=lambda spec, why_not: iter(())
    )
    with pytest.raises(AssertionError):
        hold(small, "test_no_arm_exceeds_its_budget")
    silent = replace(GRID, name="broken", lists_trials=False)
    with pytest.raises(AssertionError, match="must say why"):
        hold(silent, "test_it_says_what_it_decided")
