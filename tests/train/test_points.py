"""Points: what a training reports of its curves on the way is what its results hold, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import interrupted
import pytest
from tiny_trials import trial

from hpxfer.train import trainer
from hpxfer.train.trainer import train
from hpxfer.trial import Setting, Trial
from hpxfer.trial.events import Points, Progress
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

Series = dict[tuple[str, int | None, str | None], dict[int, float]]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report after every step."""
    monkeypatch.setattr(trainer, "PROGRESS_S", 0.0)


def points_of(progress: Iterable[Progress]) -> list[Points]:
    return [event.points for event in progress if event.points is not None]


def joined(reports: Iterable[Points], trial_id: str) -> Series:
    """Return the curves that reports of neighboring steps add up to. No point comes twice."""
    out: Series = {}
    for points in reports:
        for curve in points.curves[trial_id]:
            series = out.setdefault((curve.metric, curve.layer, curve.role), {})
            assert points.first <= curve.steps[0] <= curve.steps[-1] < points.stop
            assert not set(curve.steps) & set(series)
            series.update(zip(curve.steps, curve.values, strict=True))
    return out


def stored(result: TrialResult, stop: int | None = None) -> Series:
    """Return the curves of a result before step `stop`."""
    curves = {
        (curve.metric, curve.layer, curve.role): {
            step: value for step, value in zip(curve.steps, curve.values, strict=True) if stop is None or step < stop
        }
        for curve in result.curves
    }
    return {key: series for key, series in curves.items() if series}


def trials(setting: Setting) -> tuple[Trial, ...]:
    """Return trials of which one diverges on the way."""
    hot = trial(setting, seed=1, lr=3e4)
    return trial(setting, seed=0), hot, trial(setting, seed=2, lr=2.0**-5)


def test_the_points_of_all_reports_are_the_curves_of_the_results(setting: Setting) -> None:
    stack = trials(replace(setting, steps=120))
    _, progress, results = interrupted.run(stack, None, points=True)
    reports = points_of(progress)
    assert reports[0].first == 0
    assert [points.first for points in reports[1:]] == [points.stop for points in reports[:-1]]
    assert {result.status for result in results} == {"finished", "diverged"}
    for result in results:
        assert joined(reports, result.trial_id) == stored(result, reports[-1].stop)
        assert stored(result)


def test_a_training_that_goes_on_from_a_checkpoint_reports_its_points_from_the_start(
    setting: Setting, tmp_path: Path
) -> None:
    stack, spec = trials(replace(setting, steps=40)), interrupted.always(tmp_path)
    _, before, none = interrupted.run(stack, spec, until=25, points=True)
    assert none == ()
    steps, after, results = interrupted.run(stack, spec, points=True)
    assert 0 < steps[0] <= 25
    reports = points_of(after)
    assert (reports[0].first, reports[0].stop) == (0, steps[0])
    for result in results:
        assert joined(reports, result.trial_id) == stored(result, reports[-1].stop)
        first = joined(points_of(before), result.trial_id)
        assert first == stored(result, points_of(before)[-1].stop)  # the same bits before and after


def test_without_being_asked_a_training_reports_no_points(setting: Setting) -> None:
    *progress, _ = train(Stack(trials=trials(setting)), "cpu")
    assert points_of(event for event in progress if isinstance(event, Progress)) == []


def test_points_that_come_late_are_not_repeated_by_reports_in_between(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "PROGRESS_S", math.inf)
    stack = trials(replace(setting, steps=30))
    events = train(Stack(trials=stack), "cpu", points=True, report_at=(10, 20))
    reports = points_of(event for event in events if isinstance(event, Progress))
    assert [(points.first, points.stop) for points in reports] == [(0, 10), (10, 20)]
