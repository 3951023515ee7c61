"""A training that was cut off or stopped goes on with the bits of an undisturbed one, and reports the same points."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from tiny_trials import BASE, trial
from trainings import always, facts, often, run

from hpxfer.executors import worker
from hpxfer.executors.worker import TrainStack, guarded
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.spec.model_section import Balance
from hpxfer.testing.families import expanded, three_trials
from hpxfer.train import trainer
from hpxfer.train.checkpoints import Checkpoints, CheckpointSpec
from hpxfer.train.step import TrainStep
from hpxfer.train.trainer import train
from hpxfer.trial import Setting, Trial
from hpxfer.trial.events import Ended, Points, Progress
from hpxfer.trial.process import StopRequest
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

E8A2 = replace(BASE, num_experts=8, num_active=2)
HYBRID = replace(
    BASE, depth=3, num_experts=8, num_active=4, num_groups=2, num_shared=2, shared_width=24, dense_width=40
)
DENSE = Shape(width=16, depth=2, head_dim=8, dense_width=48)
LONGER = {"steps": 20, "final_window_steps": 4, "decay": "cosine"}
CASES: dict[str, tuple[Shape, str, dict[str, Any]]] = {
    "momentum": (E8A2, "sp", {"optimizer": "sgd"}),
    "clipped": (E8A2, "completep-moe", {"gradient_clip": 0.3, "norm_gains": True, "biases": True}),
    "router noise": (E8A2, "mup-moe[1.0]", {"gate": "softmax"}),
    "ties at random": (E8A2, "mssp-i", {"ties": "random"}),
    "last loads": (E8A2, "sp", {"balance": Balance(bias="sign", aux="switch", load="last_step")}),
    "hybrid": (HYBRID, "complete-mue", {"moe_every": 2, "gate": "normalized_sigmoid"}),
    "dense": (DENSE, "complete-mue", {"biases": True}),
}
# They diverge at different steps, or never.
RATES = (2.0**-6, 1e6, 2.0**-7, 40.0, 2.0**-5)


@pytest.fixture(autouse=True, scope="module")
def compacting() -> Iterator[None]:
    """Let diverged trials leave the stack at once."""
    with mock.patch.object(trainer, "saves_time", return_value=True):
        yield


def stack_of(setting: Setting, case: str) -> list[Trial]:
    """Return trials that differ in id, seed, table and HPs."""
    shape, name, changes = CASES[case]
    table, _, std = name.removesuffix("]").partition("[")
    choice = parameterization(table, {"router_bias_std": float(std)} if std else None)
    longer = replace(setting, **LONGER, **changes)
    hp = {"last loads": "aux_weight", "momentum": "momentum"}.get(case)  # of some trials, not of others
    stack = [
        replace(
            trial(longer, shape, lr=rate, seed=k % 2, **({hp: 0.3 * (k % 3)} if hp else {})), parameterization=choice
        )
        for k, rate in enumerate(RATES)
    ]
    stack.append(replace(stack[0], seed=5, hps=replace(stack[0].hps, init_scale=1e30)))  # NaN at once
    return [replace(member, id=f"{case} {k}") for k, member in enumerate(stack)]


@functools.cache
def whole(setting: Setting, case: str) -> tuple[TrialResult, ...]:
    """Return the results of a case's undisturbed training."""
    return run(stack_of(setting, case), None)[2]


FAST = ("momentum", "router noise", "last loads")


@pytest.mark.parametrize(
    "case", [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in (*CASES, "stay") if case not in FAST)]
)
def test_cut_off_twice_it_has_the_bits_of_an_undisturbed_run(
    setting: Setting, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "stay":  # diverged trials stay in the stack
        monkeypatch.setattr(trainer, "saves_time", lambda *_: False)
        case = "router noise"
    stack, undisturbed, spec = stack_of(setting, case), whole(setting, case), always(tmp_path / "checkpoints")
    assert {result.status for result in undisturbed} == {"finished", "diverged"}
    assert len({result.diverged_step for result in undisturbed}) > 2
    taken = [run(stack, spec, until)[0] for until in (6 + list(CASES).index(case), 15)]
    last, progress, results = run(stack, spec)
    assert facts(results) == facts(undisturbed)
    assert [*taken[0], *taken[1], *last] == list(range(20))  # no step twice
    assert ({result.resumes for result in results}, {result.resumes for result in undisturbed}) == ({2}, {0})
    assert sum(event.tokens for event in progress) == 20 * 64 * len(stack)
    assert (progress[0].step, progress[-1].step) == (15, 20)


DIT = """\
name: flow
model:
  family: dit
  base: {width: 16, depth: 2, num_experts: 4, num_active: 2, expert_ratio: 1, head_dim: 8}
  dit: {patch: 4, adaln_init: random}
data: {source: "builtin:shapes"}
training: {batch_samples: 8, steps: 12, validation_samples: 16}
parameterizations: [complete-mue, sp]
axes: {width: [32]}
grid: {lr: [0.01]}
"""


def test_samples_and_their_noise_go_on_where_a_training_was_cut_off(tmp_path: Path) -> None:
    stack, spec = three_trials(expanded(DIT)), always(tmp_path)
    (taken, _, cut), (rest, _, results) = run(stack, spec, 7), run(stack, spec)
    assert (cut, [*taken, *rest]) == ((), list(range(12)))
    assert facts(results) == facts(run(stack, None)[2])


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(cut=st.integers(2, 19), later=st.integers(0, 19), some=st.permutations(range(6)), count=st.integers(1, 6))
def test_any_part_of_the_stack_goes_on_in_any_order(
    setting: Setting, tmp_path_factory: pytest.TempPathFactory, cut: int, later: int, some: list[int], count: int
) -> None:
    stack, undisturbed = stack_of(setting, "router noise"), whole(setting, "router noise")
    spec = always(tmp_path_factory.mktemp("part") / "checkpoints")
    run(stack, spec, until=cut)
    part = [stack[k] for k in some[:count]]
    run(part, spec, until=later)
    steps, _, results = run(part, spec)
    assert facts(results) == facts([undisturbed[k] for k in some[:count]])
    if any(undisturbed[k].diverged_step is None for k in some[:count]):
        # A run that is not cut off ends, and its last checkpoint is of the step before the last.
        assert steps == list(range(later if later >= cut else 19, 20))


def test_trials_without_momentum_go_on_from_a_stack_that_had_some(setting: Setting, tmp_path: Path) -> None:
    stack = [each for each in stack_of(setting, "momentum") if each.hps.lr < 1]
    assert [each.hps.momentum for each in stack] == pytest.approx([0.0, 0.6, 0.3, 0.0])
    spec = always(tmp_path / "checkpoints")
    run(stack, spec, until=11)
    plain = [each for each in stack if not each.hps.momentum]
    steps, _, results = run(plain, spec)
    assert steps == list(range(11, 20))
    assert facts(results) == [
        each for each in facts(whole(setting, "momentum")) if each["trial_id"] in {each.id for each in plain}
    ]


def test_so_it_has_from_storage(setting: Setting, s3: str) -> None:
    """Checkpoints lie below a URI, as for workers that share no disk."""
    stack, spec = stack_of(setting, "momentum"), Checkpoints(f"{s3}/soak/checkpoints").start(0.0)
    assert spec is not None
    assert run(stack, spec, until=11)[0] == list(range(11))
    steps, _, results = run(stack, spec)
    assert steps == list(range(11, 20))
    assert facts(results) == facts(whole(setting, "momentum"))


def test_time_adds_up_and_a_part_has_its_share(setting: Setting, tmp_path: Path) -> None:
    stack, spec = stack_of(setting, "momentum")[:3:2], always(tmp_path / "checkpoints")  # none diverges
    run(stack, spec, until=18)
    (found,) = Checkpoints(tmp_path / "checkpoints").usable()
    before = found.facts["wall_s"]
    assert before > 0
    (alone,) = run(stack[:1], spec)[2]
    assert alone.wall_s is not None
    assert alone.wall_s > before / 2
    assert alone.tokens_per_s == pytest.approx(20 * 64 / alone.wall_s)
    both = run(stack, spec)[2]
    assert both[0].wall_s is not None
    assert both[0].wall_s > before
    assert both[0].tokens_per_s == pytest.approx(2 * 20 * 64 / both[0].wall_s)


def test_halves_of_a_stack_without_memory_go_on_from_its_checkpoint(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = stack_of(setting, "momentum")[:4]
    spec = always(tmp_path / "checkpoints")
    taken: list[tuple[int, int]] = []
    plain = TrainStep.gradients

    def short_of_memory(self: TrainStep, step: int) -> Any:
        if step == 12 and len(stack) == 4 and not any(at == 12 for at, _ in taken):
            taken.append((12, 0))
            raise MemoryError
        taken.append((step, self.state.num_trials))
        return plain(self, step)

    monkeypatch.setattr(TrainStep, "gradients", short_of_memory)
    with often():
        *_, ended = guarded(lambda part: train(part, "cpu", checkpoints=spec), Stack(trials=tuple(stack)))
        assert isinstance(ended, Ended)
        results = ended.results
    assert facts(results) == facts(whole(setting, "momentum")[:4])
    assert {(result.halvings, result.resumes) for result in results} == {(1, 1)}
    assert min(step for step, _ in taken[13:]) == 12


def test_a_part_of_which_nobody_is_left_in_the_checkpoint_starts_over(setting: Setting, tmp_path: Path) -> None:
    stack, spec = stack_of(setting, "momentum"), always(tmp_path / "checkpoints")
    run(stack, spec, until=2)
    steps, _, results = run(stack[5:], spec)
    assert facts(results) == facts(whole(setting, "momentum")[5:])
    assert steps == [0]
    assert results[0].resumes == 0


def test_it_is_due_after_some_time_and_not_before(setting: Setting, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    spec, stack = always(folder), [trial(setting)]
    for other in (None, replace(spec, every_s=1e6)):
        run(stack, other, until=5)
        assert [path.name for path in folder.iterdir()] == ["driver"]
    run(stack, spec, until=5)
    (found,) = Checkpoints(folder).usable()
    assert (found.step, found.trials) == (5, (stack[0].id,))


@pytest.mark.parametrize("elsewhere", ["no marker", "another driver's", "no folder"])
def test_a_folder_that_is_not_the_drivers_is_left_alone(setting: Setting, tmp_path: Path, elsewhere: str) -> None:
    folder = tmp_path / "checkpoints"
    spec, stack = always(folder), [trial(setting)]
    run(stack, spec, until=4)
    before = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    assert before
    if elsewhere == "no marker":
        (folder / "driver").unlink()
    elif elsewhere == "another driver's":
        Checkpoints(folder).start(0.0)
    else:
        spec = CheckpointSpec(folder=str(tmp_path / "none"), every_s=0.0, marker=spec.marker)
    steps, _, results = run(stack, spec)
    assert steps == list(range(setting.steps))
    assert results[0].resumes == 0
    assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == before
    assert not (tmp_path / "none").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_strict_on_cuda_goes_on_with_the_same_bits(setting: Setting, tmp_path: Path) -> None:
    stack = Stack(trials=tuple(stack_of(setting, "router noise")))
    longer = replace(stack.setting, steps=80)
    stack = Stack(trials=tuple(replace(member, setting=longer) for member in stack.trials))
    spec = always(tmp_path / "checkpoints")
    *_, undisturbed = train(stack, "cuda", determinism="strict")
    with often():
        events = train(stack, "cuda", determinism="strict", checkpoints=spec)
        next(events)
        events.close()
        (found,) = Checkpoints(tmp_path / "checkpoints").usable()
        *_, ended = train(stack, "cuda", determinism="strict", checkpoints=spec)
    assert found.step > 0
    assert isinstance(ended, Ended)
    assert isinstance(undisturbed, Ended)
    assert facts(ended.results) == facts(undisturbed.results)
    assert all(not math.isnan(result.wall_s or math.nan) and result.resumes == 1 for result in ended.results)


@pytest.fixture
def pair(setting: Setting) -> Stack:
    return Stack(trials=tuple(trial(setting, BASE, seed=seed) for seed in range(2)))


@pytest.mark.parametrize("after", [1, 3])
def test_it_stops_after_the_step_and_goes_on_with_the_same_bits(after: int, pair: Stack, tmp_path: Path) -> None:
    spec = Checkpoints(tmp_path).start(3600.0)  # no checkpoint is due before the training ends
    asked = iter([False] * (after - 1) + [True])
    events = list(train(pair, "cpu", checkpoints=spec, stop=lambda: next(asked)))
    assert not any(isinstance(event, Ended) for event in events)
    (found,) = Checkpoints(tmp_path).usable()
    assert (found.step, found.trials) == (after, tuple(member.id for member in pair.trials))
    taken, _, results = run(pair.trials, spec)
    _, _, straight = run(pair.trials, None)
    assert taken == list(range(after, pair.setting.steps))
    assert facts(results) == facts(straight)
    assert [result.resumes for result in results] == [1, 1]


def test_an_asked_training_ends_with_its_last_step_and_a_worker_sends_no_results(
    pair: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Checkpoints(tmp_path).start(3600.0)
    asked: list[None] = []
    *_, end = train(pair, "cpu", checkpoints=spec, stop=lambda: bool(asked.append(None)))
    assert isinstance(end, Ended)
    assert len(asked) == pair.setting.steps - 1
    assert list(train(pair, "cpu", stop=lambda: True)) == []  # without checkpoints it ends and keeps nothing
    # Neither of a stack that was halved: its second half is not begun.
    monkeypatch.setattr(worker, "STOP", stop := StopRequest())
    stop.end()
    how = TrainStack("cpu", checkpoints=Checkpoints(tmp_path).start(3600.0))
    for cut in (False, True):
        (ended,) = guarded(how, pair, cut=cut)
        assert ended == Ended(results=())


Series = dict[tuple[str, int | None, str | None], dict[int, float]]


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


def hot_trials(setting: Setting) -> tuple[Trial, ...]:
    """Return trials of which one diverges on the way."""
    hot = trial(setting, seed=1, lr=3e4)
    return trial(setting, seed=0), hot, trial(setting, seed=2, lr=2.0**-5)


def test_the_points_of_all_reports_are_the_curves_of_the_results(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "PROGRESS_S", 0.0)
    stack = hot_trials(replace(setting, steps=60))
    _, progress, results = run(stack, None, points=True)
    reports = points_of(progress)
    assert reports[0].first == 0
    assert [points.first for points in reports[1:]] == [points.stop for points in reports[:-1]]
    assert {result.status for result in results} == {"finished", "diverged"}
    for result in results:
        assert joined(reports, result.trial_id) == stored(result, reports[-1].stop)
        assert stored(result)


def test_a_training_that_goes_on_from_a_checkpoint_reports_its_points_from_the_start(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "PROGRESS_S", 0.0)
    stack, spec = hot_trials(replace(setting, steps=40)), always(tmp_path)
    _, before, none = run(stack, spec, until=25, points=True)
    assert none == ()
    steps, after, results = run(stack, spec, points=True)
    assert 0 < steps[0] <= 25
    reports = points_of(after)
    assert (reports[0].first, reports[0].stop) == (0, steps[0])
    for result in results:
        assert joined(reports, result.trial_id) == stored(result, reports[-1].stop)
        first = joined(points_of(before), result.trial_id)
        assert first == stored(result, points_of(before)[-1].stop)  # the same bits before and after


def test_late_points_are_not_repeated_by_reports_in_between_and_come_only_if_asked_for(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "PROGRESS_S", math.inf)
    stack = Stack(trials=hot_trials(replace(setting, steps=30)))
    for points, expected in ((True, [(0, 10), (10, 20)]), (False, [])):
        events = train(stack, "cpu", points=points, report_at=(10, 20))
        reports = points_of(event for event in events if isinstance(event, Progress))
        assert [(report.first, report.stop) for report in reports] == expected
