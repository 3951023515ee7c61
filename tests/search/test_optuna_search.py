"""optuna as a search: it finds planted optima, learns from divergence, and is taken up again wherever it was killed."""

from __future__ import annotations

import math
import random
import sqlite3
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from landscape import Landscape, expansion_of

from hpxfer.errors import HpxferError
from hpxfer.result import TrialResult
from hpxfer.search import Outcome, make_search
from hpxfer.search.optuna_search import OptunaSearch
from hpxfer.search.optuna_study import STUDY_FILE, TRIALS
from hpxfer.spec.samplers import NAMES
from hpxfer.store import Store
from hpxfer.trial import Expansion, Trial

BOX = (("lr: [0.01]", "lr: {log2: [-9, -3]}\n  init_scale: {log2: [-2, 2]}"), ("hps:\n", "hps:\n  lr: 0.01\n"))
LAND = Landscape(optima={"lr": -6.3, "init_scale": 0.6}, noise=0.001, walls={"lr": -4.5})


def expansion(sampler: str = "TPESampler", budget: int = 32, more: str = "", seeds: int = 2) -> Expansion:
    search = f"{{kind: optuna, sampler: {sampler}, budget: {budget}{more}}}"
    return expansion_of(*BOX, ("seeds: 2", f"seeds: {seeds}"), search=search)


def play(
    search: OptunaSearch,
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
        out = {one.id for one in flying}
        asked = search.ask(outcomes, out, at_once - len(flying))
        assert not {one.id for one in asked} & {*out, *outcomes}
        flying += asked
        if not flying:
            break
        if order is not None:
            order.shuffle(flying)
        done = flying.pop(0)
        outcomes[done.id] = land(done)
        ended.append(done)
    return ended


def search_in(folder: Path, one: Expansion) -> OptunaSearch:
    found = make_search(one, folder, "validation")
    assert isinstance(found, OptunaSearch)
    return found


def run_to_end(folder: Path, one: Expansion, outcomes: dict[str, Outcome] | None = None) -> dict[str, Trial]:
    known = {} if outcomes is None else outcomes
    return {trial.id: trial for trial in play(search_in(folder, one), known)}


def studies(folder: Path) -> dict[str, optuna.Study]:
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / STUDY_FILE}")
    names = optuna.get_all_study_names(storage)
    found = {name: optuna.load_study(study_name=name, storage=storage) for name in names}
    for study in found.values():
        study.trials  # noqa: B018 - read before the connection is closed
    return found


@pytest.mark.parametrize("sampler", NAMES)
def test_every_sampler_spends_the_same_budget_in_every_arm_and_finds_the_basin(sampler: str, tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    one = expansion(sampler, budget=22)
    trials = run_to_end(tmp_path, one, outcomes)
    arms = Counter((str(trial.parameterization), trial.shape) for trial in trials.values())
    assert len(arms) == 3, "the base is shared"
    assert set(arms.values()) == {22}
    assert search_in(tmp_path, one).bound() == Counter(trial.shape for trial in trials.values())
    again = search_in(tmp_path, one)
    assert list(again.ask(outcomes, (), None)) == []
    assert {shape: (of.num_done, of.most_left) for shape, of in again.progress().items()} == {
        shape: (num, 0) for shape, num in again.bound().items()
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


@pytest.mark.parametrize(
    ("sampler", "kept"),
    [(name, "file and outcomes") for name in ("TPESampler", "CmaEsSampler", "NSGAIISampler")]
    + [("TPESampler", "outcomes")],
)
def test_a_killed_search_goes_on_as_if_nothing_had_happened(sampler: str, kept: str, tmp_path: Path) -> None:
    """With the file, bit for bit. Without it no trial is doubled and the budget holds."""
    one = expansion(sampler, budget=12, more=", batch: 2")
    straight: dict[str, Outcome] = {}
    (tmp_path / "straight").mkdir()
    run_to_end(tmp_path / "straight", one, straight)
    outcomes: dict[str, Outcome] = {}
    (tmp_path / "killed").mkdir()
    for _ in range(10):
        if kept == "outcomes":
            (tmp_path / "killed" / STUDY_FILE).unlink(missing_ok=True)
        if not play(search_in(tmp_path / "killed", one), outcomes, stop_after=9):
            break
        _store(tmp_path / "killed", one, outcomes)
    if kept == "file and outcomes":
        assert outcomes == straight
    assert len(outcomes) == len(straight) == 36


def _store(folder: Path, one: Expansion, outcomes: dict[str, Outcome]) -> None:
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
        one = made(*given)  # type: ignore[arg-type]
        _SEEN[one.id] = one
        return one

    monkeypatch.setattr(Expansion, "trial", trial)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), at_once=st.integers(1, 9))
def test_the_order_in_which_trials_end_changes_nothing(seed: int, at_once: int, tmp_path_factory: object) -> None:
    folder = tmp_path_factory.mktemp("order")  # type: ignore[attr-defined]
    one = expansion(budget=12, more=", batch: 2")
    first: dict[str, Outcome] = {}
    play(search_in(folder / "a", one), first)
    second: dict[str, Outcome] = {}
    play(search_in(folder / "b", one), second, at_once=at_once, order=random.Random(seed))
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
    after = run_to_end(tmp_path, expansion(budget=24, seeds=3), outcomes)
    assert {trial.seed for trial in after.values()} == {2}
    assert {trial.hps for trial in after.values()} == {trial.hps for trial in before.values()}


def test_results_that_no_study_asked_for_are_where_it_starts(tmp_path: Path) -> None:
    """As from a grid or `--reuse`: those in the box count, against the budget too; the others do not."""
    one = expansion(budget=16)
    choice, shape = one.choices[0], one.shapes[1]
    lines = [(2.0**lr, 1.5) for lr in (-8, -7, -6, -2)]  # the last outside the box
    base = next(iter(one.trials())).hps
    known = [
        one.trial(choice, shape, base.with_value("lr", lr).with_value("init_scale", init), seed)
        for lr, init in lines
        for seed in one.spec.seeds
    ]
    outcomes = {trial.id: LAND(trial) for trial in known}
    _store(tmp_path, one, outcomes)
    trials = run_to_end(tmp_path, one, outcomes)
    arms = Counter((trial.parameterization, trial.shape) for trial in trials.values())
    assert sorted(arms.values()) == [10, 16, 16], "six of the eight are points of that arm's box"
    search = search_in(tmp_path, one)
    assert search.ask(outcomes, (), None) == ()
    assert any("batch 1: 3 points" in line for line in search.why().splitlines())


def test_a_trial_that_fails_holds_its_arm_back_and_no_other(tmp_path: Path) -> None:
    one = expansion(budget=16)
    search = search_in(tmp_path, one)
    bad = search.ask({}, (), 1)[0]
    outcomes: dict[str, Outcome] = {}
    while asked := search.ask(outcomes, {bad.id}, None):
        outcomes.update((trial.id, LAND(trial)) for trial in asked)
    arms = Counter((_SEEN[key].parameterization, _SEEN[key].shape) for key in outcomes)
    assert sorted(arms.values()) == [7, 16, 16]
    more = run_to_end(tmp_path, one, outcomes)
    assert bad.id in more, "the next run tries it again"
    assert len(outcomes) == 48


def test_the_file_holds_a_study_an_arm_that_optuna_opens(tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    trials = run_to_end(tmp_path, expansion(budget=16), outcomes)
    found = studies(tmp_path)
    assert sorted(name.partition(",")[0] for name in found) == ["any (base)", "completep-moe", "sp"]
    for study in found.values():
        assert study.user_attrs["budget"] == 16
        for one in study.trials:
            ids = [*one.user_attrs[TRIALS].values()]
            assert [trials[key].hps.lr for key in ids] == [one.params["lr"]] * 2
            values = [outcomes[key].value for key in ids]
            if "diverged" in {outcomes[key].status for key in ids}:
                assert one.state is optuna.trial.TrialState.FAIL, "no loss is made up"
            else:
                assert one.value == pytest.approx(sum(values) / 2, rel=1e-12)
    assert sum(len(study.trials) for study in found.values()) == 24


def test_no_pickle_is_ever_in_the_file(tmp_path: Path) -> None:
    """optuna's CMA-ES keeps one in its study: here that study is in memory only."""
    run_to_end(tmp_path, expansion("CmaEsSampler", budget=32, more=", sampler_args: {popsize: 4}"))
    with sqlite3.connect(tmp_path / STUDY_FILE) as file:
        assert file.execute("select count(*) from trial_user_attributes").fetchone()[0] > 0
        assert file.execute("select count(*) from trial_system_attributes").fetchone()[0] == 0


def test_planning_leaves_no_trace(tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    run_to_end(tmp_path, expansion(budget=8), outcomes)
    content = (tmp_path / STUDY_FILE).read_bytes()
    assert search_in(tmp_path, expansion(budget=16)).ask(outcomes, (), None)
    assert (tmp_path / STUDY_FILE).read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [STUDY_FILE]
    search_in(tmp_path / "none", expansion()).ask({}, (), None)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("damage", [b"", b"not a database at all, but long enough to be one" * 30, None])
def test_a_file_that_cannot_be_read_is_set_aside_and_made_anew(damage: bytes | None, tmp_path: Path) -> None:
    one = expansion(budget=16)
    outcomes: dict[str, Outcome] = {}
    play(search_in(tmp_path, one), outcomes, stop_after=20)
    _store(tmp_path, one, outcomes)
    path = tmp_path / STUDY_FILE
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    known = dict(outcomes)
    search = search_in(tmp_path, one)
    play(search, outcomes)
    assert len(outcomes) == 48
    assert all(outcomes[key] == value for key, value in known.items())
    assert sum(len(study.trials) for study in studies(tmp_path).values()) >= 24
    if damage:
        assert (tmp_path / "optuna-damaged-1.db").read_bytes() == damage


def test_a_file_that_cannot_be_written_is_said_and_the_search_goes_on(tmp_path: Path) -> None:
    path = tmp_path / STUDY_FILE
    path.mkdir()
    search = search_in(tmp_path, expansion(budget=8))
    outcomes: dict[str, Outcome] = {}
    play(search, outcomes)
    assert len(outcomes) == 24
    assert str(path) in search.why().splitlines()[-1]


def test_what_another_wrote_into_the_file_is_passed_over(tmp_path: Path) -> None:
    one = expansion(budget=8)
    outcomes: dict[str, Outcome] = {}
    play(search_in(tmp_path, one), outcomes, stop_after=4)
    for study in studies(tmp_path).values():
        study.enqueue_trial({"lr": 0.5})
        study.add_trial(optuna.trial.create_trial(value=-5.0, user_attrs={TRIALS: {"0": "../x"}, "batch": 0}))
    play(search_in(tmp_path, one), outcomes)
    straight: dict[str, Outcome] = {}
    play(search_in(tmp_path / "straight", one), straight)
    assert outcomes == straight


@pytest.mark.parametrize(
    ("sampler", "arguments"),
    [("TPESampler", "n_startup_trials: 0, n_ei_candidates: 0"), ("CmaEsSampler", "popsize: 0")],
)
def test_arguments_that_fail_only_when_asked_are_one_message(sampler: str, arguments: str, tmp_path: Path) -> None:
    one = expansion(sampler, more=f", sampler_args: {{{arguments}}}")
    with pytest.raises(HpxferError, match=rf"sampler: {sampler} with .* cannot propose a point: .*sampler_args"):
        run_to_end(tmp_path, one)


def test_a_box_of_one_point_is_asked_once(tmp_path: Path) -> None:
    one = expansion_of(("lr: [0.01]", "lr: [0.01]"), search="{kind: optuna, budget: 16}")
    trials = run_to_end(tmp_path, one)
    assert Counter(trial.shape for trial in trials.values()) == {one.shapes[0]: 2, one.shapes[1]: 4}
