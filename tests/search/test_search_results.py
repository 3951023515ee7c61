"""Results of searches: cells, lines, reports and recipes; and optuna.db, which nothing depends on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import optuna
import pytest
from landscape import LR, Landscape, Ran, expansion_of, run
from searched import stored

from hpxfer.analysis import analyze, transfer_report
from hpxfer.errors import HpxferError
from hpxfer.prediction import predict
from hpxfer.recipe import recipe_of
from hpxfer.results import Results
from hpxfer.search import Outcome, make_search
from hpxfer.search.export import FILE, TRIALS, StudyExport
from hpxfer.trial import Expansion, Trial

LANDSCAPE = Landscape(optima={"lr": -6.3, "router.lr_mult": -3.0, "init_scale": -2.0}, noise=0.002, walls={"lr": -4.5})
TWO = ("[0.01]", "{log2: [-9, -4]}\n  init_scale: {log2: [-3, 3]}")
NO_GRID = (("grid:\n  lr: [0.01]\n", ""), ("hps:", "hps:\n  lr: 0.01"))
KINDS = {
    "random": expansion_of(TWO, search="{kind: random, points: 12}"),
    "random line": expansion_of(LR, search="{kind: random, points: 8}"),
    "refine": expansion_of(LR, search="{kind: refine, until_octaves: 0.5}"),
    "coordinate": expansion_of(LR, search="{kind: coordinate, multipliers: [router.lr_mult]}"),
    "coordinate at one lr": expansion_of(*NO_GRID, search="{kind: coordinate, multipliers: [router.lr_mult]}"),
    "staged grid": expansion_of(LR, search="{kind: staged-grid, multipliers: [init_scale, router.lr_mult]}"),
    "grid at the base": expansion_of(LR, search="{kind: grid, at: base}"),
}
Make = Callable[[str], tuple[Results, Ran]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    @cache
    def make(kind: str) -> tuple[Results, Ran]:
        ran = run(KINDS[kind], LANDSCAPE)
        return stored(KINDS[kind], ran, tmp_path_factory.mktemp("results")), ran

    return make


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_trial_of_a_search_has_its_cell_and_no_other(made: Make, kind: str) -> None:
    results, ran = made(kind)
    cells = results.cells
    assert set(cells["trial_id"]) == set(ran.trials)
    assert "missing" not in set(cells["status"])
    for row in cells.to_dict("records"):
        trial = ran.trials[row["trial_id"]]
        assert row["shape"] == trial.shape.label()
        assert row["lr" if "lr" in row else "router.lr_mult"] == trial.hps.get(
            "lr" if "lr" in row else "router.lr_mult"
        )
    at_base = cells[cells["is_base"]]
    assert set(at_base["parameterization"]) == {"completep-moe", "sp"}, "both tables have the cells that they share"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_everything_is_said_of_it_or_why_not(made: Make, kind: str) -> None:
    results, _ = made(kind)
    found = analyze(results)
    report = transfer_report(results)
    assert "Does lr transfer?" in report.summary()
    if kind in ("random", "coordinate at one lr"):
        assert report.findings == ()
        assert found.report is None
        assert results.why_no_line() is not None
        assert results.line().empty
    else:
        assert {finding.parameterization for finding in report.findings} == {"completep-moe", "sp"}
        assert results.why_no_line() is None
    if kind == "random":
        assert any("no trial lies on a line of it" in note for note in found.notes)


def test_a_line_holds_what_is_on_it_and_nothing_else(made: Make) -> None:
    results, ran = made("staged grid")
    assert set(results.line("lr")["value"]) == {
        trial.hps.lr for trial in ran.trials.values() if not trial.hps.multipliers
    }
    assert set(results.cells["line"]) == {"lr", "staged-grid"}
    with pytest.raises(HpxferError, match="hp: must be scanned by the sweep, got 'eps'"):
        results.line("eps")


def test_a_stored_trial_of_another_sweep_is_no_cell(made: Make, tmp_path: Path) -> None:
    expansion = KINDS["refine"]
    ran = run(expansion, LANDSCAPE)
    other = run(expansion_of(LR, ("steps: 200", "steps: 201"), search="refine"), LANDSCAPE)
    longer = run(expansion_of(LR, ("width: [32, 64]", "width: [32, 96]"), search="refine"), LANDSCAPE)
    mixed = Ran(
        search=ran.search,
        outcomes={**longer.outcomes, **other.outcomes, **ran.outcomes},
        trials={**longer.trials, **other.trials, **ran.trials},
    )
    assert set(stored(expansion, mixed, tmp_path).cells["trial_id"]) == set(ran.trials)


def test_what_comes_next_is_missing_and_what_failed_is_failed(tmp_path: Path) -> None:
    half = run(KINDS["refine"], LANDSCAPE, at_once=1, stop_after=20)
    results = stored(KINDS["refine"], half, tmp_path / "half")
    assert set(results.cells["status"]) == {"finished", "diverged", "missing"}
    assert any("have not been run" in note for note in analyze(results).notes)
    unlucky = run(KINDS["refine"], LANDSCAPE, fails=lambda trial: trial.seed == 1 and trial.shape.width == 64)
    results = stored(KINDS["refine"], unlucky, tmp_path / "unlucky")
    assert "failed" in set(results.cells["status"])
    assert transfer_report(results).findings


EXPECTED = {
    "random": ("random", 24),
    "random line": ("random", 16),
    "coordinate": ("coordinate", 20),
    "coordinate at one lr": ("coordinate", 10),
    "staged grid": ("staged-grid", None),
}


@pytest.mark.parametrize("kind", sorted(EXPECTED))
def test_a_recipe_carries_the_tuned_point_and_where_it_is_from(made: Make, kind: str) -> None:
    results, ran = made(kind)
    recipe = recipe_of(results, "completep-moe")
    search = recipe.file.provenance.search
    assert search is not None
    name, trials = EXPECTED[kind]
    assert search.kind == name
    assert trials is None or search.num_trials == trials
    assert search.num_points * 2 == search.num_trials <= search.budget
    hps = recipe.file.hps
    assert any(
        (trial.hps.lr, trial.hps.init_scale, dict(trial.hps.multipliers)) == (hps.lr, hps.init_scale, hps.multipliers)
        for trial in ran.trials.values()
        if trial.shape.width == 32
    )
    if kind != "random line":
        tuned = recipe.file.hps.init_scale if kind == "random" else recipe.file.hps.multipliers["router.lr_mult"]
        assert tuned < 1
    assert type(recipe).load(_written(recipe, results.folder)).file == recipe.file
    assert f"with {name} over" in recipe.describe({**recipe.file.base_shape})


def _written(recipe, folder: Path) -> Path:  # type: ignore[no-untyped-def]
    path = folder / "recipe.yaml"
    path.write_text(recipe.dump())
    return path


def test_what_an_edited_sweep_left_outside_the_box_is_not_tuned(tmp_path: Path) -> None:
    box = expansion_of(("[0.01]", "{log2: [-9, -8]}"), search="{kind: random, points: 4}")
    ran, before = run(box, LANDSCAPE), run(expansion_of(LR, search="{kind: random, points: 8}"), LANDSCAPE)
    beside = run(KINDS["staged grid"], LANDSCAPE)
    left = Ran(
        search=ran.search,
        outcomes={**before.outcomes, **beside.outcomes, **ran.outcomes},
        trials={**before.trials, **beside.trials, **ran.trials},
    )
    recipe = recipe_of(stored(box, left, tmp_path)).file
    assert 2**-9 <= recipe.hps.lr <= 2**-8
    assert not recipe.hps.multipliers


def test_every_shape_has_the_hp_that_refine_transferred(tmp_path: Path) -> None:
    """The fit's best at the base may be one that no other shape tries; the lowest measured one every shape has."""
    sweep = expansion_of(LR, search="refine")
    for salt in (7, 11):
        land = Landscape(optima={"lr": -6.3 + 0.07 * salt}, drift=-1.0, noise=0.004, salt=salt)
        for finding in transfer_report(stored(sweep, run(sweep, land), tmp_path / str(salt))).findings:
            assert [shape.transferred for shape in finding.shapes] == ["measured"] * len(finding.shapes)


def test_a_search_that_has_not_ended_tunes_nothing(tmp_path: Path) -> None:
    half = run(KINDS["coordinate"], LANDSCAPE, at_once=1, stop_after=14)
    with pytest.raises(HpxferError, match="the search must have ended, got trials still to train; run the sweep again"):
        recipe_of(stored(KINDS["coordinate"], half, tmp_path))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_target_gets_the_tuned_hps_and_a_loss_or_a_reason(made: Make, kind: str) -> None:
    results, _ = made(kind)
    base = results.spec.base_shape
    found = predict(results, replace(base, width=2 * base.width, expert_width=2 * base.expert_width))
    tuned = recipe_of(results).hps
    assert found.value == tuned.get(results.spec.judged_hp)
    assert {row.role: row.lr for row in found.hps.rows}["embedding"] == pytest.approx(tuned.lr)
    assert found.why_no_loss  # two shapes are too few, and some searches scan no line
    assert found.why_no_loss in str(found)


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


def studies_in(folder: Path) -> list[optuna.Study]:
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / FILE}")
    found = [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]
    for study in found:
        study.trials  # noqa: B018 - read before the connection is closed
    return found


@pytest.mark.parametrize("kind", sorted(SEARCHES))
def test_every_search_has_a_file_that_optuna_opens(kind: str, tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    trials = run_exported(tmp_path, SEARCHES[kind], outcomes)
    found = studies_in(tmp_path)
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
    monkeypatch.setattr("hpxfer.search.export.MAX_POINTS", 4)
    run_exported(tmp_path, SEARCHES["random"])
    for study in studies_in(tmp_path):
        assert len(study.trials) == 4
        assert study.user_attrs["num_points"] > 4


def test_a_grid_has_none(tmp_path: Path) -> None:
    run_exported(tmp_path, expansion_of(LR))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_taken_up_writes_the_file_anew_and_doubles_no_point(tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    run_exported(tmp_path, SEARCHES["random"], outcomes)
    first = sum(len(study.trials) for study in studies_in(tmp_path))
    (tmp_path / FILE).write_bytes(b"not a database")
    run_exported(tmp_path, SEARCHES["random"], outcomes)
    assert sum(len(study.trials) for study in studies_in(tmp_path)) == first > 0


def test_no_pickle_is_ever_in_the_file(tmp_path: Path) -> None:
    """optuna's CMA-ES keeps a pickle in its study. Here that study is in memory only."""
    run_exported(tmp_path, SEARCHES["optuna"])
    with sqlite3.connect(tmp_path / FILE) as file:
        assert file.execute("select count(*) from trial_user_attributes").fetchone()[0] > 0
        assert file.execute("select count(*) from trial_system_attributes").fetchone()[0] == 0


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
    assert len(studies_in(tmp_path)) == 3
