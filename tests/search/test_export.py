"""optuna.db: what a dashboard sees of a search, and that nothing depends on it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import optuna
import pytest
from landscape import LR, Landscape, expansion_of

from hpxfer.search import Outcome, make_search
from hpxfer.search.export import FILE, TRIALS, StudyExport
from hpxfer.trial import Expansion, Trial

TWO_HPS = "{log2: [-9, -4]}\n  init_scale: {log2: [-2, 2]}"
LAND = Landscape(optima={"lr": -6.3, "init_scale": 0.6}, walls={"lr": -4.5})
SEARCHES = {
    "random": expansion_of(("[0.01]", TWO_HPS), search="{kind: random, points: 6}"),
    "optuna": expansion_of(("[0.01]", TWO_HPS), search="{kind: optuna, sampler: cma-es, budget: 16}"),
    "refine": expansion_of(LR, search="refine"),
    "coordinate": expansion_of(LR, search="{kind: coordinate, multipliers: [router.lr_mult]}"),
    "staged-grid": expansion_of(LR, search="{kind: staged-grid, multipliers: [init_scale]}"),
}


def run_exported(folder: Path, expansion: Expansion, known: dict[str, Outcome] | None = None) -> dict[str, Trial]:
    """Run a search whose trials never overlap, and export it as a driver does. Return its trials."""
    search, export, trials = make_search(expansion), StudyExport(folder, expansion), dict[str, Trial]()
    outcomes = {} if known is None else known
    while asked := search.ask(outcomes, ()):
        export.write(search)
        trials.update((trial.id, trial) for trial in asked)
        outcomes.update((trial.id, LAND(trial)) for trial in asked)
    export.write(search)
    assert export.problem is None
    return trials


def studies(folder: Path) -> list[optuna.Study]:
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / FILE}")
    found = [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]
    for study in found:
        study.trials  # noqa: B018 - read before the connection is closed
    return found


@pytest.mark.parametrize("kind", sorted(SEARCHES))
def test_every_search_has_a_file_that_optuna_opens(kind: str, tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    trials = run_exported(tmp_path, SEARCHES[kind], outcomes)
    found = studies(tmp_path)
    assert len(found) >= 1
    for study in found:
        for point in study.trials:
            ids = [*point.user_attrs[TRIALS].values()]
            assert trials[ids[0]].hps.lr == point.params["lr"]
            values = [outcomes[trial_id].value for trial_id in ids]
            if "diverged" in {outcomes[trial_id].status for trial_id in ids}:
                assert point.state is optuna.trial.TrialState.FAIL, "no loss is made up"
            else:
                assert point.value == pytest.approx(sum(values) / len(values), rel=1e-12)
    ids = {trial_id for study in found for point in study.trials for trial_id in point.user_attrs[TRIALS].values()}
    assert ids == set(trials)


def test_a_search_of_very_many_points_writes_the_first_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpxfer.search.export.MAX_POINTS", 7)
    run_exported(tmp_path, SEARCHES["staged-grid"])
    for study in studies(tmp_path):
        assert len(study.trials) == 7
        assert study.user_attrs["num_points"] > 7


def test_a_grid_has_none(tmp_path: Path) -> None:
    run_exported(tmp_path, expansion_of(LR))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_taken_up_writes_the_file_anew_and_doubles_no_point(tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    run_exported(tmp_path, SEARCHES["random"], outcomes)
    first = sum(len(study.trials) for study in studies(tmp_path))
    (tmp_path / FILE).write_bytes(b"not a database")
    run_exported(tmp_path, SEARCHES["random"], outcomes)
    assert sum(len(study.trials) for study in studies(tmp_path)) == first > 0


def test_no_pickle_is_ever_in_the_file(tmp_path: Path) -> None:
    """optuna's CMA-ES keeps a pickle in its study. Here that study is in memory only."""
    run_exported(tmp_path, SEARCHES["optuna"])
    with sqlite3.connect(tmp_path / FILE) as file:
        assert file.execute("select count(*) from trial_user_attributes").fetchone()[0] > 0
        assert file.execute("select count(*) from trial_system_attributes").fetchone()[0] == 0


def test_planning_leaves_no_trace(tmp_path: Path) -> None:
    assert make_search(SEARCHES["optuna"]).ask({}, ())
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_said_and_the_search_goes_on(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    expansion = SEARCHES["random"]
    search, export = make_search(expansion), StudyExport(tmp_path, expansion)
    outcomes = {trial.id: LAND(trial) for trial in search.ask({}, ())}
    assert search.ask(outcomes, ()) == ()
    export.write(search)
    assert str(tmp_path / FILE) in (export.problem or "")
    (tmp_path / FILE).rmdir()
    export.write(search)
    assert export.problem is None
    assert len(studies(tmp_path)) == 3
