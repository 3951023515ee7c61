"""A training that was cut off continues from its checkpoint with the bits of an undisturbed one."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted import always, often, run
from laws import examples
from tiny_trials import BASE, JOINT, numbers, trial

from hpxfer.executors.worker import guarded
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.spec.balance import Balance
from hpxfer.train import trainer
from hpxfer.train.checkpoints import Checkpoints, CheckpointSpec
from hpxfer.train.step import TrainStep
from hpxfer.train.trainer import train
from hpxfer.trial import Setting, Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

E8A2 = replace(BASE, num_experts=8, num_active=2)
HYBRID = replace(
    BASE, depth=3, num_experts=8, num_active=4, num_groups=2, num_shared=2, shared_width=24, dense_width=40
)
DENSE = Shape(width=16, depth=2, head_dim=8, dense_width=48)
LONGER = {"steps": 20, "final_window_steps": 4, "decay": "cosine"}
CASES: dict[str, tuple[Shape, str, dict[str, Any]]] = {
    "moe": (JOINT, "completep-moe", {}),
    "sgd": (E8A2, "sp", {"optimizer": "sgd"}),
    "momentum": (E8A2, "sp", {"optimizer": "sgd"}),
    "clipped": (E8A2, "completep-moe", {"gradient_clip": 0.3, "norm_gains": True, "biases": True}),
    "router noise": (E8A2, "mup-moe[1.0]", {"gate": "softmax"}),
    "ties at random": (E8A2, "mssp-i", {"ties": "random"}),
    "fixed bias": (E8A2, "mssp-i", {"ties": "fixed_bias"}),
    "last loads": (E8A2, "sp", {"balance": Balance(bias="sign", aux="switch", load="last_step")}),
    "tied experts": (JOINT, "mssp-iii", {"ffn": "swiglu"}),
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
    stack = [
        replace(trial(longer, shape, lr=rate, seed=k % 2), parameterization=choice) for k, rate in enumerate(RATES)
    ]
    if case == "last loads":
        stack = [replace(each, hps=replace(each.hps, aux_weight=0.3 * (k % 3))) for k, each in enumerate(stack)]
    if case == "momentum":  # of some trials, not of others
        stack = [replace(each, hps=replace(each.hps, momentum=0.3 * (k % 3))) for k, each in enumerate(stack)]
    stack.append(replace(stack[0], seed=5, hps=replace(stack[0].hps, init_scale=1e30)))  # NaN at once
    return [replace(member, id=f"{case} {k}") for k, member in enumerate(stack)]


def facts(results: tuple[TrialResult, ...]) -> list[dict[str, Any]]:
    return [numbers(result) for result in results]


@pytest.mark.parametrize("case", CASES)
def test_cut_off_twice_it_has_the_bits_of_an_undisturbed_run(setting: Setting, case: str, tmp_path: Path) -> None:
    goes_on(stack_of(setting, case), tmp_path, first=6 + list(CASES).index(case) % 9)


def test_so_it_has_where_diverged_trials_stay(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "saves_time", lambda *_: False)
    goes_on(stack_of(setting, "router noise"), tmp_path, first=9)


def goes_on(stack: list[Trial], folder: Path, first: int) -> None:
    """Assert that a training that was cut off twice gives the same results."""
    all_steps, _, undisturbed = run(stack, None)
    assert {result.status for result in undisturbed} == {"finished", "diverged"}
    assert len({result.diverged_step for result in undisturbed}) > 2
    spec = always(folder / "checkpoints")
    taken = [run(stack, spec, until)[0] for until in (first, 15)]
    last, progress, results = run(stack, spec)
    assert facts(results) == facts(undisturbed)
    assert [*taken[0], *taken[1], *last] == all_steps == list(range(20))  # no step twice
    assert {result.resumes for result in results} == {2}
    assert {result.resumes for result in undisturbed} == {0}
    assert sum(event.tokens for event in progress) == 20 * 64 * len(stack)
    assert (progress[0].step, progress[-1].step) == (15, 20)


@functools.cache
def whole(setting: Setting) -> tuple[list[Trial], tuple[TrialResult, ...]]:
    """Return a stack and the results of its undisturbed training."""
    stack = stack_of(setting, "router noise")
    return stack, run(stack, None)[2]


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None)
@given(cut=st.integers(2, 19), later=st.integers(0, 19), some=st.permutations(range(6)), count=st.integers(1, 6))
def test_any_part_of_the_stack_goes_on_in_any_order(
    setting: Setting,
    tmp_path_factory: pytest.TempPathFactory,
    cut: int,
    later: int,
    some: list[int],
    count: int,
) -> None:
    stack, undisturbed = whole(setting)
    spec = always(tmp_path_factory.mktemp("part") / "checkpoints")
    run(stack, spec, until=cut)
    part = [stack[k] for k in some[:count]]
    run(part, spec, until=later)
    steps, _, results = run(part, spec)
    assert facts(results) == facts(tuple(undisturbed[k] for k in some[:count]))
    if any(undisturbed[k].diverged_step is None for k in some[:count]):
        # A run that is not cut off ends, and its last checkpoint is of the step before the last.
        assert steps == list(range(later if later >= cut else 19, 20))


def test_trials_without_momentum_go_on_from_a_stack_that_had_some(setting: Setting, tmp_path: Path) -> None:
    stack = [each for each in stack_of(setting, "momentum") if each.hps.lr < 1]
    assert [each.hps.momentum for each in stack] == pytest.approx([0.0, 0.6, 0.3, 0.0])
    undisturbed, spec = run(stack, None)[2], always(tmp_path / "checkpoints")
    run(stack, spec, until=11)
    plain = [each for each in stack if not each.hps.momentum]
    steps, _, results = run(plain, spec)
    assert steps == list(range(11, 20))
    assert facts(results) == facts((undisturbed[0], undisturbed[3]))


def test_so_it_has_from_storage(setting: Setting, tmp_path: Path) -> None:
    """Checkpoints lie below a URI, as for workers that share no disk."""
    stack, spec = stack_of(setting, "sgd"), Checkpoints("memory://bucket/soak/checkpoints").start(0.0)
    assert spec is not None
    assert run(stack, spec, until=11)[0] == list(range(11))
    steps, _, results = run(stack, spec)
    assert steps == list(range(11, 20))
    assert facts(results) == facts(run(stack, None)[2])


def test_time_adds_up_and_a_part_has_its_share(setting: Setting, tmp_path: Path) -> None:
    stack = stack_of(setting, "moe")[:3:2]  # none diverges
    spec = always(tmp_path / "checkpoints")
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
    stack = stack_of(setting, "clipped")[:4]
    undisturbed = run(stack, None)[2]
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
    assert facts(results) == facts(undisturbed)
    assert {(result.halvings, result.resumes) for result in results} == {(1, 1)}
    assert min(step for step, _ in taken[13:]) == 12


def test_a_part_of_which_nobody_is_left_in_the_checkpoint_starts_over(setting: Setting, tmp_path: Path) -> None:
    stack = stack_of(setting, "moe")
    undisturbed = run(stack, None)[2]
    spec = always(tmp_path / "checkpoints")
    run(stack, spec, until=19)
    steps, _, results = run(stack[5:], spec)
    assert facts(results) == facts(undisturbed[5:])
    assert steps == [0]
    assert results[0].resumes == 0


def test_without_a_spec_nothing_is_written_or_read(setting: Setting, tmp_path: Path) -> None:
    stack = stack_of(setting, "moe")
    always(tmp_path / "checkpoints")
    steps, _, results = run(stack, None)
    assert len(steps) == 20
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["driver"]
    assert {result.resumes for result in results} == {0}


def test_it_is_due_after_some_time_and_not_before(setting: Setting, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    spec = always(folder)
    stack = stack_of(setting, "moe")[:1]
    run(stack, replace(spec, every_s=1e6), until=19)
    assert Checkpoints(folder).usable() == []
    run(stack, spec, until=19)
    (found,) = Checkpoints(folder).usable()
    assert found.step == 19
    assert found.trials == (stack[0].id,)


@pytest.mark.parametrize("elsewhere", ["no marker", "another driver's", "no folder"])
def test_a_folder_that_is_not_the_drivers_is_left_alone(setting: Setting, tmp_path: Path, elsewhere: str) -> None:
    folder = tmp_path / "checkpoints"
    stack = stack_of(setting, "moe")[:1]
    spec = always(folder)
    run(stack, spec, until=10)
    before = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    assert before
    if elsewhere == "no marker":
        (folder / "driver").unlink()
    elif elsewhere == "another driver's":
        Checkpoints(folder).start(0.0)
    else:
        spec = CheckpointSpec(folder=str(tmp_path / "none"), every_s=0.0, marker=spec.marker)
    steps, _, results = run(stack, spec)
    assert steps == list(range(20))
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
    results = ended.results
    assert isinstance(undisturbed, Ended)
    assert facts(results) == facts(undisturbed.results)
    assert all(not math.isnan(result.wall_s or math.nan) and result.resumes == 1 for result in results)
