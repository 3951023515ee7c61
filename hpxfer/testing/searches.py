"""The conformance suite of searches. Derive a pytest class from `SearchSuite`, and define `kind` and `sweep`.

Nothing is trained: losses come from a parabola in each HP, with noise, and large learning rates diverge.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from hpxfer.registry import registry
from hpxfer.search import (
    SEARCHES,
    Arm,
    Outcome,
    RoundSearch,
    Search,
    SearchKind,
    Stored,
    arms_of,
    is_in_box,
    kind_of,
    make_search,
    no_trials,
)
from hpxfer.spec import arm_budget, budget_text, dump_sweep, parse_sweep
from hpxfer.trial import DataRef, Expansion, Trial

# A sweep with two arms at the wide shape and one at the base, where the tables agree. Its `search` is still missing.
SWEEP = """\
name: suite
model:
  family: gpt
  base: {width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}
  context: 64
data: {source: "builtin:stdlib"}
training: {batch_tokens: 512, steps: 60, validation_tokens: 8192}
parameterizations: [completep-moe, sp]
axes: {width: [32, 64]}
grid: {lr: {log2: [-9, -4]}}
seeds: 2
"""
_DATA = DataRef(digest="suite", tokenizer="ascii", vocab_size=128)
_UNKNOWN = {"0123": Outcome("finished", 0.0), "4567": Outcome("diverged")}


def loss_of(trial: Trial) -> Outcome:
    """Return a loss that depends on the trial alone: lowest at a learning rate of 2^-6.3, diverged above 2^-4.2."""
    if math.log2(trial.hps.lr) > -4.2:
        return Outcome("diverged")
    noise = random.Random(trial.id).gauss(0.0, 0.003)
    multipliers = sum(0.03 * (math.log2(value) - 1.0) ** 2 for _, value in trial.hps.multipliers)
    scale = 0.02 * (math.log2(trial.hps.init_scale) - 0.6) ** 2
    return Outcome("finished", 2.0 + 0.05 * (math.log2(trial.hps.lr) + 6.3) ** 2 + scale + multipliers + noise)


@dataclass(kw_only=True)
class Ran:
    """What a run of a search came to."""

    search: Search
    outcomes: dict[str, Outcome]
    trials: dict[str, Trial] = field(default_factory=dict)  # that this run asked for


def run_search(
    expansion: Expansion,
    *,
    known: Mapping[str, Outcome] | None = None,
    loss: Callable[[Trial], Outcome] = loss_of,
    fails: Callable[[Trial], bool] = lambda trial: False,
    at_once: int | None = None,
    order: random.Random | None = None,
    stop_after: int | None = None,
    stored: Stored = no_trials,
) -> Ran:
    """Run a search to its end, or until so many trials have ended.

    At most `at_once` trials run at a time, and they end in the order that `order` shuffles them to. `stored` reads what
    the results folder has.
    """
    ran = Ran(search=make_search(expansion, stored), outcomes=dict(known or {}))
    running, failed = list[Trial](), set[str]()
    while stop_after is None or len(ran.trials) - len(running) < stop_after:
        busy = {*failed, *(trial.id for trial in running)}
        asked = ran.search.ask(ran.outcomes, busy)
        ids = [trial.id for trial in asked]
        assert len(set(ids)) == len(ids), "ask returned a trial twice"
        assert not {*ran.outcomes, *busy} & set(ids), "ask returned a trial that has ended or is running"
        room = len(asked) if at_once is None else max(0, at_once - len(running))
        ran.trials.update((trial.id, trial) for trial in asked[:room])
        running += asked[:room]
        if not running:
            break
        if order is not None:
            order.shuffle(running)
        trial = running.pop(0)
        if fails(trial):
            failed.add(trial.id)
        else:
            ran.outcomes[trial.id] = loss(trial)
    return ran


@contextlib.contextmanager
def expanded(kind: SearchKind, sweep: str) -> Iterator[Expansion]:
    """Register the kind, if it is not, and expand the sweep."""
    with contextlib.nullcontext() if kind.name in SEARCHES else registry("search").registered(kind):
        yield Expansion(parse_sweep(sweep), _DATA)


class SearchSuite:
    """Derive from it, and define the fixtures `kind` (the row under test) and `sweep` (the text of a sweep file)."""

    @pytest.fixture
    def expansion(self, kind: SearchKind, sweep: str) -> Iterator[Expansion]:
        with expanded(kind, sweep) as found:
            yield found

    @pytest.fixture
    def complete(self, expansion: Expansion) -> Ran:
        """The search, run to its end one trial at a time."""
        return run_search(expansion)

    def test_the_sweep_loads_and_survives_a_dump(self, kind: SearchKind, expansion: Expansion) -> None:
        bare = [name for name, key in kind.settings.model_fields.items() if not key.description]
        assert bare == [], "put a text below each key of `settings`"
        assert kind_of(expansion.spec) is kind, "the sweep must name the kind under test"
        assert parse_sweep(dump_sweep(expansion.spec)) == expansion.spec
        assert kind.name in budget_text(expansion.spec)

    def test_it_asks_for_trials_of_the_sweep(self, kind: SearchKind, expansion: Expansion, complete: Ran) -> None:
        trials = complete.trials
        assert trials, "nothing was asked for"
        arms = [_arm(expansion, trial) for trial in trials.values()]
        assert None not in arms, "a trial is of no arm of the sweep, or has another id than the sweep's"
        assert {trial.seed for trial in trials.values()} <= set(expansion.spec.seeds)
        if kind.lists_trials:
            assert set(trials) == {trial.id for trial in expansion.trials()}
        if kind.is_box:
            assert all(is_in_box(expansion.spec, trial.hps) for trial in trials.values())

    def test_no_arm_exceeds_its_budget(self, kind: SearchKind, expansion: Expansion, complete: Ran) -> None:
        spec, budget = expansion.spec, arm_budget(expansion.spec)
        arms = Counter(_arm(expansion, trial) for trial in complete.trials.values())
        assert max(arms.values()) <= budget
        if kind.fixed_size:
            assert set(arms.values()) == {budget}, "fixed_size says that every arm trains its whole budget"
        size = sum(kind.rounds(spec).elements()) * (1 if kind.splits_seeds else len(spec.seeds))
        assert size >= budget, "`rounds` must hold all points that the budget can buy"

    def test_what_is_left_is_never_less_than_what_follows(self, expansion: Expansion, complete: Ran) -> None:
        for stop_after in (0, 3, 10, None):
            ran = run_search(expansion, stop_after=stop_after)
            ran.search.ask(ran.outcomes, ())
            progress = ran.search.progress().values()
            left = sum(shape.most_left for shape in progress)
            assert sum(shape.num_done for shape in progress) == len(ran.outcomes)
            assert left >= len(complete.trials) - len(ran.outcomes)
        assert left == 0

    def test_neither_order_nor_parallelism_changes_what_is_asked_for(self, expansion: Expansion, complete: Ran) -> None:
        for seed, at_once in enumerate((1, 3, 16)):
            ran = run_search(expansion, at_once=at_once, order=random.Random(seed))
            assert ran.outcomes == complete.outcomes
            assert ran.search.why() == complete.search.why()

    def test_a_run_that_was_stopped_goes_on_to_the_same_end(self, expansion: Expansion, complete: Ran) -> None:
        for stop_after in (0, 1, 5, 20):
            first = run_search(expansion, at_once=5, stop_after=stop_after)
            second = run_search(expansion, known=first.outcomes)
            assert not first.outcomes.keys() & second.trials.keys(), "a trial was trained twice"
            assert second.outcomes == complete.outcomes

    def test_a_failed_trial_holds_back_what_needs_it_until_the_next_run(
        self, expansion: Expansion, complete: Ran
    ) -> None:
        first = run_search(expansion, at_once=4, fails=lambda trial: int(trial.id[:8], 16) % 4 == 0)
        assert first.trials.keys() <= complete.trials.keys()
        assert run_search(expansion, known=first.outcomes).outcomes == complete.outcomes

    def test_outcomes_of_other_trials_change_nothing(self, expansion: Expansion, complete: Ran) -> None:
        assert run_search(expansion, known=_UNKNOWN).trials.keys() == complete.trials.keys()

    def test_it_ends_where_everything_diverges(self, expansion: Expansion) -> None:
        ran = run_search(expansion, loss=lambda trial: Outcome("diverged"))
        assert len(ran.trials) <= arm_budget(expansion.spec) * len(arms_of(expansion))
        assert not make_search(expansion).ask(ran.outcomes, ())

    def test_it_says_what_it_decided(self, kind: SearchKind, complete: Ran) -> None:
        assert complete.search.why() or kind.lists_trials, "a search that chooses must say why"
        assert isinstance(complete.search, RoundSearch) or not kind.replays, "only a RoundSearch can be replayed"


def _arm(expansion: Expansion, trial: Trial) -> Arm | None:
    """Return the arm of a trial, or None if no arm has it."""
    arms = (arm for arm in arms_of(expansion) if arm.shape == trial.shape)
    return next((arm for arm in arms if expansion.trial(arm.choice, arm.shape, trial.hps, trial.seed) == trial), None)
