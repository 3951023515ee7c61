"""A search is asked again as its trials end, goes on after a stop, and reuses what is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest
from driver_cases import Made, trained
from tiny import write_tiny

from hpxfer import search, trial
from hpxfer.driver import prepare, run
from hpxfer.driver import prepared as driver_job
from hpxfer.progress.counts import RunCounts
from hpxfer.scaling.shape import Shape
from hpxfer.search import Outcome
from hpxfer.store import Store
from hpxfer.trial import Expansion
from hpxfer.trial.stack import Stack


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


def test_a_search_is_asked_again_when_its_trials_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_job, "make_search", lambda expansion, stored: Rounds(expansion))
    sweep, executor, notes = write_tiny(tmp_path), Made(stop_after=1), list[str]()
    with pytest.raises(KeyboardInterrupt):
        run(sweep, results=tmp_path, executor=executor)
    executor = Made()
    run(sweep, results=tmp_path, executor=executor, on_event=lambda _, __, counts: notes.extend(counts.notes))
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


def test_a_search_reuses_what_it_comes_to_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    full = run(write_tiny(tmp_path / "one"), results=tmp_path / "one", executor=Made(fail=30 - 20)).folder
    monkeypatch.setattr(driver_job, "make_search", lambda expansion, stored: Rounds(expansion))
    executor = Made()
    results = run(write_tiny(tmp_path), results=tmp_path, reuse=[full], executor=executor)
    stored = Store.open(full, write=False).done_ids()
    assert {trial.id for stack in executor.given for trial in stack.trials}.isdisjoint(stored)
    assert len(results.trials) == 18
    assert trained(executor) == 18 - len(stored & set(results.trials["trial_id"]))
