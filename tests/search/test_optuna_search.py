"""optuna as a search: it finds optima, learns from divergence, is taken up again; and the samplers that it has."""

from __future__ import annotations

import math
import random
import statistics
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import optuna
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from landscape import Landscape, bound_of, expansion_of
from laws import examples

from hpxfer.errors import HpxferError
from hpxfer.search import Outcome, Search, make_search
from hpxfer.search.kinds import no_trials
from hpxfer.search.optuna_search import study_of
from hpxfer.search.optuna_study import (
    SAMPLERS,
    legal_arguments,
    make_sampler,
    quiet,
    sampler_name,
    sampler_problems,
)
from hpxfer.spec import load_sweep
from hpxfer.spec.data_section import data_sizes
from hpxfer.store import Store
from hpxfer.trial import DataRef, Expansion, Trial
from hpxfer.trial.result import TrialResult

BOX = (("lr: [0.01]", "lr: {log2: [-9, -3]}\n  init_scale: {log2: [-2, 2]}"), ("hps:\n", "hps:\n  lr: 0.01\n"))
LAND = Landscape(optima={"lr": -6.3, "init_scale": 0.6}, noise=0.001, walls={"lr": -4.5})


def expansion(sampler: str = "TPESampler", budget: int = 32, more: str = "", seeds: int = 2) -> Expansion:
    search = f"{{kind: optuna, sampler: {sampler}, budget: {budget}{more}}}"
    return expansion_of(*BOX, ("seeds: 2", f"seeds: {seeds}"), search=search)


def play(
    search: Search,
    outcomes: dict[str, Outcome],
    *,
    land: Callable[[Trial], Outcome] = LAND,
    at_once: int = 3,
    order: random.Random | None = None,
    stop_after: int | None = None,
) -> list[Trial]:
    """Run a search until it is done or so many trials have ended; return them in the order they ended in."""
    flying: list[Trial] = []
    ended: list[Trial] = []
    while stop_after is None or len(ended) < stop_after:
        out = {trial.id for trial in flying}
        asked = search.ask(outcomes, out)[: at_once - len(flying)]
        assert not {trial.id for trial in asked} & {*out, *outcomes}
        flying += asked
        if not flying:
            break
        if order is not None:
            order.shuffle(flying)
        done = flying.pop(0)
        outcomes[done.id] = land(done)
        ended.append(done)
    return ended


def search_in(folder: Path, sweep: Expansion) -> Search:
    """Return the search that a driver makes for a results folder."""

    def stored() -> pd.DataFrame:
        return Store.open(folder, write=False).read_trials().to_pandas() if folder.is_dir() else no_trials()

    return make_search(sweep, stored)


def run_to_end(folder: Path, sweep: Expansion, outcomes: dict[str, Outcome] | None = None) -> dict[str, Trial]:
    known = {} if outcomes is None else outcomes
    return {trial.id: trial for trial in play(search_in(folder, sweep), known)}


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_every_sampler_spends_the_same_budget_in_every_arm_and_finds_the_basin(sampler: str, tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    sweep = expansion(sampler, budget=22)
    trials = run_to_end(tmp_path, sweep, outcomes)
    arms = Counter((str(trial.parameterization), trial.shape) for trial in trials.values())
    assert len(arms) == 3, "the base is shared"
    assert set(arms.values()) == {22}
    assert bound_of(sweep) == Counter(trial.shape for trial in trials.values())
    again = search_in(tmp_path, sweep)
    assert list(again.ask(outcomes, ())) == []
    assert {shape: (of.num_done, of.most_left) for shape, of in again.progress().items()} == {
        shape: (num, 0) for shape, num in bound_of(sweep).items()
    }
    best = min(outcome.value for outcome in outcomes.values())
    assert best < 2.0 + 0.35, "no better than the middle of the box"
    assert all(-9 <= math.log2(trial.hps.lr) <= -3 for trial in trials.values())


def test_a_sampler_that_learns_beats_chance_and_keeps_away_from_the_wall(tmp_path: Path) -> None:
    def later(sampler: str) -> float:
        """The median loss above the lowest, of what is asked for after the start at random."""
        trials = play(search_in(tmp_path / sampler, expansion(sampler, 20, seeds=1, more=", at: base")), {})
        return statistics.median(LAND(trial).value for trial in trials[10:]) - 2.0

    assert later("GPSampler") < 0.5 * later("RandomSampler")

    def walled(num: int, sampler: str) -> float:
        folder = tmp_path / f"{sampler}-{num}"
        trials = play(search_in(folder, expansion(sampler, 48, seeds=1, more=f", at: base, seed: {num}")), {})
        return sum(LAND(trial).status == "diverged" for trial in trials[24:]) / 24

    # Of a box a quarter of which diverges: TPE is told of it, and goes there less than chance does.
    assert walled(0, "TPESampler") < 0.5 * walled(0, "RandomSampler")


@pytest.mark.first
@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_a_killed_search_goes_on_as_if_nothing_had_happened(sampler: str, tmp_path: Path) -> None:
    sweep = expansion(sampler, budget=12, more=", batch: 2")
    straight: dict[str, Outcome] = {}
    (tmp_path / "straight").mkdir()
    run_to_end(tmp_path / "straight", sweep, straight)
    outcomes: dict[str, Outcome] = {}
    (tmp_path / "killed").mkdir()
    for _ in range(10):
        if not play(search_in(tmp_path / "killed", sweep), outcomes, stop_after=9):
            break
        _store(tmp_path / "killed", sweep, outcomes)
    assert outcomes == straight
    assert len(outcomes) == len(straight) == 36


def _store(folder: Path, sweep: Expansion, outcomes: dict[str, Outcome]) -> None:
    """Put what ended into the store, as the driver does: an optuna search reads the HPs of unknown trials there."""
    store = Store.open(folder, write=True)
    new = [_SEEN[key] for key in outcomes if key not in store.done_ids()]
    store.append([(trial, _result(trial, outcomes[trial.id])) for trial in new])


_SEEN: dict[str, Trial] = {}


def _result(trial: Trial, outcome: Outcome) -> TrialResult:
    return TrialResult(
        trial_id=trial.id,
        status="diverged" if outcome.status == "diverged" else "finished",
        validation_loss_nats=outcome.loss,
    )


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember every trial that an expansion makes."""
    made = Expansion.trial

    def trial(*given: object) -> Trial:
        new = made(*given)  # type: ignore[arg-type]
        _SEEN[new.id] = new
        return new

    monkeypatch.setattr(Expansion, "trial", trial)


@settings(max_examples=examples(5), deadline=None)
@given(seed=st.integers(0, 10**6), at_once=st.integers(1, 9))
def test_the_order_in_which_trials_end_changes_nothing(seed: int, at_once: int, tmp_path_factory: object) -> None:
    folder = tmp_path_factory.mktemp("order")  # type: ignore[attr-defined]
    sweep = expansion(budget=12, more=", batch: 2")
    first: dict[str, Outcome] = {}
    play(search_in(folder / "a", sweep), first)
    second: dict[str, Outcome] = {}
    play(search_in(folder / "b", sweep), second, at_once=at_once, order=random.Random(seed))
    assert first == second


def test_a_larger_budget_goes_on_from_the_smaller_one(tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    before = run_to_end(tmp_path, expansion(budget=8), outcomes)
    after = run_to_end(tmp_path, expansion(budget=16), outcomes)
    assert len(before) == len(after) == 3 * 8
    straight: dict[str, Outcome] = {}
    (tmp_path / "straight").mkdir()
    run_to_end(tmp_path / "straight", expansion(budget=16), straight)
    assert outcomes == straight


def test_one_more_seed_runs_that_seed_of_the_points_that_the_budget_pays_for(tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    before = run_to_end(tmp_path, expansion(budget=16), outcomes)
    _store(tmp_path, expansion(budget=16), outcomes)
    after = run_to_end(tmp_path, expansion(budget=24, seeds=3), outcomes)
    assert {trial.seed for trial in after.values()} == {2}
    assert {trial.hps for trial in after.values()} == {trial.hps for trial in before.values()}


def test_results_that_no_study_asked_for_are_where_it_starts(tmp_path: Path) -> None:
    """As from a grid or `--reuse`: those in the box count, against the budget too; the others do not."""
    sweep = expansion(budget=16)
    choice, shape = sweep.choices[0], sweep.shapes[1]
    lines = [(2.0**lr, 1.5) for lr in (-8, -7, -6, -2)]  # the last outside the box
    base = next(iter(sweep.trials())).hps
    known = [
        sweep.trial(choice, shape, base.with_value("lr", lr).with_value("init_scale", init), seed)
        for lr, init in lines
        for seed in sweep.spec.seeds
    ]
    outcomes = {trial.id: LAND(trial) for trial in known}
    _store(tmp_path, sweep, outcomes)
    trials = run_to_end(tmp_path, sweep, outcomes)
    arms = Counter((trial.parameterization, trial.shape) for trial in trials.values())
    assert sorted(arms.values()) == [10, 16, 16], "six of the eight are points of that arm's box"
    search = search_in(tmp_path, sweep)
    assert search.ask(outcomes, ()) == ()
    assert any("batch 1: 3 points" in line for line in search.why().splitlines())


def test_a_trial_that_fails_holds_its_arm_back_and_no_other(tmp_path: Path) -> None:
    sweep = expansion(budget=16)
    search = search_in(tmp_path, sweep)
    bad = search.ask({}, ())[0]
    outcomes: dict[str, Outcome] = {}
    while asked := search.ask(outcomes, {bad.id}):
        outcomes.update((trial.id, LAND(trial)) for trial in asked)
    arms = Counter((_SEEN[key].parameterization, _SEEN[key].shape) for key in outcomes)
    assert sorted(arms.values()) == [7, 16, 16]
    more = run_to_end(tmp_path, sweep, outcomes)
    assert bad.id in more, "the next run tries it again"
    assert len(outcomes) == 48


@pytest.mark.parametrize(
    ("sampler", "arguments"),
    [("TPESampler", "n_startup_trials: 0, n_ei_candidates: 0"), ("CmaEsSampler", "popsize: 0")],
)
def test_arguments_that_fail_only_when_asked_are_one_message(sampler: str, arguments: str, tmp_path: Path) -> None:
    sweep = expansion(sampler, more=f", sampler_args: {{{arguments}}}")
    with pytest.raises(HpxferError, match=rf"sampler: {sampler} with .* cannot propose a point: .*sampler_args"):
        run_to_end(tmp_path, sweep)


def test_a_box_of_one_point_is_asked_once(tmp_path: Path) -> None:
    sweep = expansion_of(("lr: [0.01]", "lr: [0.01]"), search="{kind: optuna, budget: 16}")
    trials = run_to_end(tmp_path, sweep)
    assert Counter(trial.shape for trial in trials.values()) == {sweep.shapes[0]: 2, sweep.shapes[1]: 4}


@pytest.mark.parametrize(
    ("more", "ceiling"),
    [
        ((), math.log(100)),
        (("model.mlp={loss: squared_error}",), 1.0),
        (("data.source=builtin:teacher/polynomial", "model.mlp={loss: squared_error}"), 1.0),
    ],
)
def test_the_ceiling_is_the_loss_of_a_model_that_has_learned_nothing(more: tuple[str, ...], ceiling: float) -> None:
    """A diverged trial counts as no better than that. Real targets have no classes to count."""
    first = Path(__file__).resolve().parents[2] / "sweeps" / "mlp" / "first.yaml"
    spec = load_sweep(first, overrides=("search={kind: optuna, budget: 6}", "seeds=2", *more))
    assert study_of(Expansion(spec, DataRef(digest="0", **data_sizes(spec.data)))).ceiling == ceiling


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_every_name_stands_for_itself_and_its_short_forms(name: str) -> None:
    short = name.removesuffix("Sampler")
    assert {sampler_name(spelling) for spelling in (name, short, short.lower(), f"{short[:2]}-{short[2:]}")} == {name}
    assert issubclass(getattr(optuna.samplers, name), optuna.samplers.BaseSampler)


def test_the_samplers_of_optuna_that_are_left_out_are_those_that_search_no_box() -> None:
    others = {"BaseSampler", "BaseGASampler", "GridSampler", "BruteForceSampler", "PartialFixedSampler", "nsgaii"}
    assert set(optuna.samplers.__all__) - set(SAMPLERS) == others


def test_an_argument_that_does_nothing_any_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def old(*, sigma0: float | None = None, seed: int | None = None) -> object:
        warnings.warn("`sigma0` has been deprecated", FutureWarning, stacklevel=2)
        return object()

    monkeypatch.setattr(optuna.samplers, "CmaEsSampler", old)
    with pytest.raises(HpxferError, match="has been deprecated"):
        make_sampler("CmaEsSampler", {"sigma0": 1.0}, 0)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ((at, said),) = sampler_problems("CmaEsSampler", {}, 2)
    assert at == ("search", "sampler")
    assert "pip install cmaes" in said


def test_what_yaml_can_spell_is_legal_and_nothing_else() -> None:
    assert legal_arguments("CmaEsSampler")["sigma0"] == "float | None"
    assert {"n_startup_trials", "multivariate", "prior_weight"} <= set(legal_arguments("TPESampler"))
    for name in SAMPLERS:
        assert not {"seed", "gamma", "weights", "constraints_func", "independent_sampler"} & set(legal_arguments(name))


def test_optuna_says_as_much_after_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    before = optuna.logging.get_verbosity()
    with quiet():
        optuna.create_study()
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr().err == ""
