"""What a sweep trains next: its plan and order, and searches that are asked again as their trials end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from command_line import Fails
from fixture_types import Patch
from made_executors import InProcess, Made, trained
from tiny import write_tiny

from hpxfer import search, trial
from hpxfer.driver import PreparedSweep, measured, prepare, run, stacks_in_order
from hpxfer.driver import prepared as driver_job
from hpxfer.driver.trial_list import known_trials, trials_of
from hpxfer.errors import HpxferError
from hpxfer.plan.packing import Device, Measured
from hpxfer.progress.counts import RunCounts
from hpxfer.results import Results, load_results
from hpxfer.scaling.shape import Shape
from hpxfer.search import Outcome
from hpxfer.search.export import FILE
from hpxfer.store import Store, rows
from hpxfer.trial import TRAINER_VERSION, Expansion
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


def test_time_is_measured_on_trials_of_the_same_length_and_precision(tmp_path: Path) -> None:
    run(write_tiny(tmp_path), results=tmp_path, executor=InProcess())
    more = prepare(write_tiny(tmp_path, ("seeds: 2", "seeds: 3")), results=tmp_path).plan
    assert more.rate_from.startswith("measured: 2 of 2 shapes, from the store")
    for edit in (("steps: 6", "steps: 600"), ("grid:", "precision: bfloat16\ngrid:")):
        other = prepare(write_tiny(tmp_path, edit), results=tmp_path).plan
        assert not any(row.is_measured for row in other.shapes)


def test_the_base_trains_first_then_the_shapes_beside_it_on_every_axis(tmp_path: Path) -> None:
    axes = "axes: {width: [8, 16, 32, 64], depth: [1, 4, 8]}"
    sweep = write_tiny(tmp_path, ("axes:\n  width: [16, 32]", axes), ("workers: 2", "workers: 1"))
    job = prepare(sweep, results=tmp_path)
    shapes = [stack.shape for stack in stacks_in_order(job.missing, job)]
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]  # planning writes nothing
    dims = list(dict.fromkeys((shape.width, shape.depth) for shape in shapes))
    assert dims[0] == (16, 1)
    assert set(dims[1:4]) == {(8, 1), (32, 1), (16, 4)}
    assert set(dims[4:]) == {(64, 1), (16, 8)}
    base = sum(shape == job.spec.base_shape for shape in shapes)
    assert all(shape == job.spec.base_shape for shape in shapes[:base])


class Crowded(Made):
    """A GPU on which no stack of more than two trials fits."""

    def _result(self, trial_id: str) -> TrialResult:
        plain = super()._result(trial_id)
        return replace(plain, wall_s=3.0, peak_bytes=5000, stack_size=2, halvings=1, device="NVIDIA made up")


def test_a_halved_stack_is_packed_by_its_half_the_next_time(tmp_path: Path) -> None:
    folder = run(write_tiny(tmp_path), results=tmp_path, executor=Crowded()).folder
    found = measured(Store.open(folder, write=False), cuda=True)
    assert set(found.values()) == {Measured(trial_s=1.5, trial_bytes=2500.0, most=2, stack_size=2)}
    job = prepare(write_tiny(tmp_path, ("seeds: 2", "seeds: 3")), results=tmp_path)
    job = replace(job, real=replace(job.real, device=Device(cuda=True)), measured=found)
    assert {len(stack.trials) for stack in stacks_in_order(job.missing, job)} <= {1, 2}


def test_trials_of_an_older_trainer_are_read_and_trained_anew(tmp_path: Path, monkeypatch: Patch) -> None:
    sweep = write_tiny(tmp_path)
    old = run_as_version(2, sweep, tmp_path, monkeypatch)
    assert old.trainer_version == 2
    before = load_results(tmp_path / "tiny")
    assert before.trainer_version == 2
    assert set(before.cells["status"]) == {"finished"}
    job = prepare(sweep, results=tmp_path)
    assert job.plan.num_done == 0
    (caution,) = job.plan.cautions
    assert caution.startswith(f"{tmp_path / 'tiny'}: its trials were trained by version 2 of the trainer")
    executor = Made()
    after = run(job, executor=executor)
    assert trained(executor) == 30
    assert after.trainer_version == TRAINER_VERSION
    assert set(after.cells["status"]) == {"finished"}
    assert len(after.trials) == 60  # the old rows stay
    assert set(before.trials["trial_id"]) < set(after.trials["trial_id"])
    assert prepare(sweep, results=tmp_path).plan.cautions == ()


def run_as_version(version: int, sweep: Path, results: Path, monkeypatch: Patch) -> Results:
    """Run a sweep as an hpxfer whose trainer has this version."""
    with monkeypatch.context() as patch:
        for module in (trial, rows, driver_job):
            patch.setattr(module, "TRAINER_VERSION", version)
        patch.setattr(trial.Expansion.__init__, "__defaults__", (version, None, None, None))
        return run(sweep, results=results, executor=Made())


def test_fast_on_a_cpu_is_said_to_be_strict(tmp_path: Path) -> None:
    fast = write_tiny(tmp_path, ("steps: 6", "steps: 6, determinism: fast"))
    (caution,) = prepare(fast, results=tmp_path).plan.cautions
    assert "fast runs the same code as strict" in caution
    results = run(fast, results=tmp_path, executor=InProcess())
    assert set(results.trials["determinism"]) == {"fast"}
    assert set(results.trials["backend"]) == {"torch"}
    assert results.trials["kernel_configs"].isna().all()


REFINE = ("seeds: 2", "seeds: 1\nsearch: {kind: refine, budget: 6}")


def statuses(job: PreparedSweep) -> dict[str, str]:
    return {row["trial_id"]: row["status"] for row in trials_of(job)}


@pytest.mark.slow
def test_a_search_lists_what_it_has_of_every_round_and_what_comes_next(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path, REFINE)
    first = prepare(sweep, results=tmp_path)
    assert [row["trial_id"] for row in trials_of(first)] == [trial.id for trial in first.missing]
    with pytest.raises(HpxferError, match="the executor ended with"):  # after the first round
        run(sweep, results=tmp_path, executor=Fails(0))
    second = prepare(sweep, results=tmp_path)
    done, coming = {trial.id for trial in first.missing}, {trial.id for trial in second.missing}
    assert coming
    assert statuses(second) == {**dict.fromkeys(done, "finished"), **dict.fromkeys(coming, "missing")}
    folder = run(sweep, results=tmp_path, executor=Fails(0)).folder
    assert statuses(prepare(sweep, results=tmp_path)) == dict.fromkeys(done | coming, "finished")
    reused = prepare(write_tiny(tmp_path, REFINE, ("name: tiny", "name: other")), results=tmp_path, reuse=[folder])
    assert {folder.id for folder in known_trials(reused)} == done | coming


class Rounds:
    """A search of two rounds: the lowest LR at the base, then at each other shape the LRs next to it."""

    def __init__(self, expansion: Expansion) -> None:
        self.trials = list(expansion.trials())

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[trial.Trial]:
        first = [trial for trial in self.trials if trial.shape == trial.base]
        second = [trial for trial in self.trials if trial.shape != trial.base and trial.hps.lr < 2**-6]
        wanted = first if any(trial.id not in outcomes for trial in first) else second
        return [trial for trial in wanted if trial.id not in outcomes and trial.id not in running]

    def progress(self) -> Mapping[Shape, search.Progress]:
        return {
            shape: search.Progress(0, most) for shape, most in Counter(trial.shape for trial in self.trials).items()
        }

    def why(self) -> str:
        return "the base first\nthen the others"


def test_a_search_is_asked_again_when_its_trials_are_done(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(driver_job, "make_search", lambda expansion, stored: Rounds(expansion))
    sweep, executor, notes = write_tiny(tmp_path), Made(stop_after=1), list[str]()
    with pytest.raises(KeyboardInterrupt):
        run(sweep, results=tmp_path, executor=executor)
    executor = Made()
    run(
        sweep,
        results=tmp_path,
        executor=executor,
        on_event=lambda _, __, counts: notes.extend(counts.run_status().notes),
    )
    shapes = [stack.shape.width for stack in executor.given]
    assert shapes == sorted(shapes)  # the base first, though the others cost more
    assert set(shapes) == {16, 32}
    assert len(Store.open(tmp_path / "tiny", write=False).done_ids()) == 10 + 2 * 2 * 2
    assert {"the base first", "then the others"} <= set(notes)
    again = Made()
    run(sweep, results=tmp_path, executor=again)
    assert again.given == []


@pytest.mark.slow
def test_a_search_that_goes_on_shows_the_best_that_it_had(tmp_path: Path) -> None:
    best: list[list[float | None]] = []

    def look(_: Stack, __: object, counts: RunCounts) -> None:
        best.append([row.best_loss for row in counts.run_status().shapes])

    for points in (3, 5):
        best.clear()
        sweep = write_tiny(tmp_path, ("seeds: 2", f"seeds: 2\nsearch: {{kind: random, points: {points}}}"))
        run(sweep, results=tmp_path, executor=Made(), on_event=look)
        assert any(text is None for text in best[0]) == (points == 3), "the first event comes before any result"


@pytest.mark.slow
def test_a_plan_counts_a_searchs_own_trials_and_not_those_of_the_sweep_before_it(tmp_path: Path) -> None:
    run(write_tiny(tmp_path), results=tmp_path, executor=Made())
    edited = write_tiny(tmp_path, ("seeds: 2", "seeds: 2\nsearch: {kind: random, points: 4}"))
    job = prepare(edited, results=tmp_path)
    assert (job.plan.num_done, job.plan.num_left) == (0, len(job.missing))
    run(edited, results=tmp_path, executor=Made())
    after = prepare(edited, results=tmp_path).plan
    assert (after.num_done, after.num_left) == (3 * 4 * 2, 0)


def test_a_search_reuses_what_it_comes_to_ask_for(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "one").mkdir()
    full = run(write_tiny(tmp_path / "one"), results=tmp_path / "one", executor=Made(fail=30 - 20)).folder
    monkeypatch.setattr(driver_job, "make_search", lambda expansion, stored: Rounds(expansion))
    executor = Made()
    results = run(write_tiny(tmp_path), results=tmp_path, reuse=[full], executor=executor)
    stored = Store.open(full, write=False).done_ids()
    assert {trial.id for stack in executor.given for trial in stack.trials}.isdisjoint(stored)
    assert len(results.trials) == 18
    assert trained(executor) == 18 - len(stored & set(results.trials["trial_id"]))


OPTUNA = ("seeds: 2", "seeds: 2\nsearch: {kind: optuna, budget: 12, batch: 2}")


@pytest.mark.slow
def test_a_run_writes_it_and_a_killed_one_trains_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    straight = run(write_tiny(tmp_path, OPTUNA), results=tmp_path / "straight", executor=Made())
    killed, sweep = tmp_path / "killed", write_tiny(tmp_path, OPTUNA)
    with pytest.raises(KeyboardInterrupt):
        run(sweep, results=killed, executor=Made(stop_after=4))
    assert (killed / "tiny" / FILE).exists()
    resumed = run(sweep, results=killed, executor=Made())
    assert set(resumed.trials["trial_id"]) == set(straight.trials["trial_id"])
    storage = optuna.storages.RDBStorage(f"sqlite:///{resumed.folder / FILE}")
    found = optuna.get_all_study_summaries(storage)
    assert sum(study.n_trials for study in found) * 2 == len(resumed.trials)
