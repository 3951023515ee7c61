"""optuna as a search: it finds optima, learns from divergence, is taken up again; and the samplers that it has."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from pathlib import Path

import optuna
import pytest
from landscape import Landscape, Ran, bound_of, expansion_of, run, search_of

from hpxfer.errors import HpxferError
from hpxfer.search import Outcome
from hpxfer.search.kinds import Stored
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
from hpxfer.trial import DataRef, Expansion
from hpxfer.trial.result import TrialResult

BOX = (("lr: [0.01]", "lr: {log2: [-9, -3]}\n  init_scale: {log2: [-2, 2]}"), ("hps:\n", "hps:\n  lr: 0.01\n"))
LAND = Landscape(optima={"lr": -6.3, "init_scale": 0.6}, noise=0.001, walls={"lr": -4.5})


def expansion(sampler: str = "TPESampler", budget: int = 32, more: str = "", seeds: int = 2) -> Expansion:
    search = f"{{kind: optuna, sampler: {sampler}, budget: {budget}{more}}}"
    return expansion_of(*BOX, ("seeds: 2", f"seeds: {seeds}"), search=search)


def in_folder(folder: Path) -> Stored:
    """Return what reads the stored trials of a results folder."""
    return lambda: Store.open(folder, write=False).read_trials().to_pandas()


def store(folder: Path, ran: Ran) -> None:
    """Put what ended into the store, as the driver does: an optuna search reads the HPs of unknown trials there."""
    results = [(trial, ran.outcomes[name]) for name, trial in ran.trials.items() if name in ran.outcomes]
    Store.open(folder, write=True).append(
        [
            (trial, TrialResult(trial_id=trial.id, status=of.status, validation_loss_nats=of.loss))  # type: ignore[arg-type]
            for trial, of in results
        ]
    )


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_every_sampler_spends_the_same_budget_in_every_arm_and_finds_the_basin(sampler: str) -> None:
    sweep = expansion(sampler, budget=22)
    ran = run(sweep, LAND)
    assert len(ran.arms()) == 3, "the base is shared"
    assert set(ran.arms().values()) == {22}
    assert bound_of(sweep) == Counter(trial.shape for trial in ran.trials.values())
    again = search_of(sweep)
    assert list(again.ask(ran.outcomes, ())) == []
    assert {shape: (of.num_done, of.most_left) for shape, of in again.progress().items()} == {
        shape: (num, 0) for shape, num in bound_of(sweep).items()
    }
    best = min(outcome.value for outcome in ran.outcomes.values())
    assert best < 2.0 + 0.35, "no better than the middle of the box"
    assert all(-9 <= math.log2(lr) <= -3 for lr in ran.values("lr"))


def test_a_sampler_that_learns_keeps_away_from_the_wall() -> None:
    def walled(sampler: str) -> float:
        trials = [*run(expansion(sampler, 48, seeds=1, more=", at: base"), LAND).trials.values()]
        return sum(LAND(trial).status == "diverged" for trial in trials[24:]) / 24

    # Of a box a quarter of which diverges: TPE is told of it, and goes there less than chance does.
    assert walled("TPESampler") < 0.5 * walled("RandomSampler")


@pytest.mark.first
@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_a_killed_search_goes_on_as_if_nothing_had_happened(sampler: str, tmp_path: Path) -> None:
    """Whatever ends first, and however many trials run at once."""
    sweep, order = expansion(sampler, budget=12, more=", batch: 2"), random.Random(sampler)
    straight, outcomes = run(sweep, LAND).outcomes, dict[str, Outcome]()
    for at_once in range(1, 11):
        ran = run(sweep, LAND, known=outcomes, at_once=at_once, order=order, stop_after=9, stored=in_folder(tmp_path))
        outcomes = ran.outcomes
        store(tmp_path, ran)
    assert outcomes == straight
    assert len(outcomes) == 36


def test_one_more_seed_runs_that_seed_of_the_points_that_the_budget_pays_for(tmp_path: Path) -> None:
    before = run(expansion(budget=16), LAND)
    store(tmp_path, before)
    after = run(expansion(budget=24, seeds=3), LAND, known=before.outcomes, stored=in_folder(tmp_path))
    assert {trial.seed for trial in after.trials.values()} == {2}
    assert {trial.hps for trial in after.trials.values()} == {trial.hps for trial in before.trials.values()}


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
    trials = {trial.id: trial for trial in known}
    found = Ran(search=search_of(sweep), outcomes={name: LAND(trial) for name, trial in trials.items()}, trials=trials)
    store(tmp_path, found)
    ran = run(sweep, LAND, known=found.outcomes, stored=in_folder(tmp_path))
    assert sorted(ran.arms().values()) == [10, 16, 16], "six of the eight are points of that arm's box"
    assert any("batch 1: 3 points" in line for line in ran.search.why().splitlines())


@pytest.mark.parametrize(
    ("sampler", "arguments"),
    [("TPESampler", "n_startup_trials: 0, n_ei_candidates: 0"), ("CmaEsSampler", "popsize: 0")],
)
def test_arguments_that_fail_only_when_asked_are_one_message(sampler: str, arguments: str) -> None:
    sweep = expansion(sampler, more=f", sampler_args: {{{arguments}}}")
    with pytest.raises(HpxferError, match=rf"sampler: {sampler} with .* cannot propose a point: .*sampler_args"):
        run(sweep, LAND)


def test_a_box_of_one_point_is_asked_once() -> None:
    sweep = expansion_of(("lr: [0.01]", "lr: [0.01]"), search="{kind: optuna, budget: 16}")
    ran = run(sweep, LAND)
    assert Counter(trial.shape for trial in ran.trials.values()) == {sweep.shapes[0]: 2, sweep.shapes[1]: 4}


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
