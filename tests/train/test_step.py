"""A step that is captured once and replayed for stack after stack gives the bits of one that is made anew.

CUDA graphs need a GPU; here a stand-in runs the captured work again, into the tensors that it gave the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_trials import JOINT, numbers, trained, trial
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpxfer.model.output import Output, router_entropies
from hpxfer.scaling.evaluate import parameterization
from hpxfer.spec.balance import Balance, LoadOf
from hpxfer.train import step as step_module
from hpxfer.train import trainer
from hpxfer.train.device import CPU, Setup
from hpxfer.train.step import StepCache, TrainStep
from hpxfer.trial import Setting, Trial
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

CAPTURED = replace(CPU, captured=True)


def leaves(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of what a piece of work gave."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Output):
        yield from leaves(tuple(vars(value).values()))
    elif isinstance(value, dict):
        yield from leaves(tuple(value.values()))
    elif isinstance(value, tuple):
        for member in value:
            yield from leaves(member)


class Replayer:
    """A stand-in for CUDA graphs."""

    made = 0

    def __init__(self, device: torch.device) -> None:
        type(self).made += 1

    def warm_up(self, work: Callable[[], object], times: int) -> None:
        for _ in range(times):
            work()

    def capture(self, work: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        out = work()
        kept = [leaf.detach() for leaf in leaves(out)]

        def replay() -> None:
            for mine, new in zip(kept, leaves(work()), strict=True):
                mine.copy_(new.detach())

        return out, replay


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "GraphCapture", Replayer)
    monkeypatch.setattr(Replayer, "made", 0)
    monkeypatch.setattr(trainer, "_steps", StepCache())


def captured(monkeypatch: pytest.MonkeyPatch, *trials: Trial, setup: Setup = CAPTURED) -> tuple[TrialResult, ...]:
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "setup_for", lambda *_: setup)
        return trained(*trials)


def scheduled(given: Trial, std: float = 1.0) -> Trial:
    return replace(given, parameterization=parameterization("mup-moe", {"router_bias_std": std}))


def test_stacks_of_one_shape_share_a_captured_step(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = replace(setting, gradient_clip=0.5, steps=20, decay="cosine")
    stacks = [
        (trial(setting, JOINT, "completep-moe"), trial(setting, JOINT, lr=2.0**-8, seed=3)),
        (trial(setting, JOINT, lr=1e6), trial(setting, JOINT, "mssp-iii", seed=1, beta1=0.5, weight_decay=0.3)),
        (trial(setting, JOINT, "mup", residual_scale=0.3, eps=1e-4), trial(setting, JOINT, router_bias_lr=0.1)),
    ]
    monkeypatch.setattr(trainer, "saves_time", lambda *_: False)
    anew = [[numbers(member) for member in trained(*stack)] for stack in stacks]
    assert [[numbers(member) for member in captured(monkeypatch, *stack)] for stack in stacks] == anew
    assert Replayer.made == 1


def test_router_noise_is_written_into_a_captured_step(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trial(setting, JOINT, "mup-moe")
    stacks = ((plain, scheduled(plain)), (scheduled(plain, 0.3), scheduled(plain, 2.0)))
    anew = [[numbers(member) for member in trained(*stack)] for stack in stacks]
    assert [[numbers(member) for member in captured(monkeypatch, *stack)] for stack in stacks] == anew
    assert Replayer.made == 1
    captured(monkeypatch, plain, replace(plain, seed=1))  # without noise it is another graph
    assert Replayer.made == 2


def test_ties_are_written_into_a_captured_step(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trial(setting, replace(JOINT, depth=2), "mssp-i")
    random, fixed = (replace(plain, setting=replace(setting, ties=ties)) for ties in ("random", "fixed_bias"))
    stacks = ((plain, random), (replace(random, seed=1), plain), (fixed, random), (random, replace(fixed, seed=4)))
    anew = [[numbers(member) for member in trained(*stack)] for stack in stacks]
    assert [[numbers(member) for member in captured(monkeypatch, *stack)] for stack in stacks] == anew
    assert Replayer.made == 2  # with a bias it is another graph
    captured(monkeypatch, plain, replace(plain, seed=1))  # without a random order, too
    assert Replayer.made == 3


@pytest.mark.parametrize(
    "other", [{"gate": "softmax"}, {"batch_tokens": 128}, {"steps": 7}, {}], ids=["gate", "batch", "steps", "size"]
)
def test_another_shape_setting_or_size_is_captured_anew(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    captured(monkeypatch, trial(setting), trial(setting, seed=1))
    captured(monkeypatch, *[trial(replace(setting, **other), seed=seed) for seed in range(2 if other else 3)])
    assert Replayer.made == 2
    captured(monkeypatch, trial(setting), trial(setting, seed=1))  # one step is kept, not all
    assert Replayer.made == 3


@pytest.mark.parametrize("looks", [1, 4])
def test_a_captured_stack_compacts(setting: Setting, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    longer = replace(setting, steps=12)
    stack = [scheduled(trial(longer, lr=rate, seed=k)) for k, rate in enumerate((1e6, 2.0**-6, 30.0, 2.0**-7))]
    monkeypatch.setattr(trainer, "saves_time", lambda *_: True)
    results = captured(monkeypatch, *stack, setup=replace(CAPTURED, steps_per_read=looks))
    assert Replayer.made > 1
    assert [numbers(result) for result in results] == [numbers(member) for member in trained(*stack)]


def test_nothing_is_kept_that_is_not_captured(setting: Setting) -> None:
    kept, stack = StepCache(), Stack(trials=(trial(setting),))
    assert kept.step_for(stack, CPU) is not kept.step_for(stack, CPU)
    assert kept.step_for(stack, CAPTURED) is kept.step_for(stack, CAPTURED)
    kept.clear()
    assert kept._step is None


def test_an_error_lets_go_of_what_is_kept(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    captured(monkeypatch, trial(setting))

    def broken(self: TrainStep, step: int) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "gradients", broken)
        with pytest.raises(MemoryError):
            captured(patch, trial(setting))
    assert trainer._steps._step is None


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the names of torch's operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("load", ["batch", "last_step"])
def test_a_captured_micro_batch_gives_the_bits_of_one_piece_after_the_other(
    monkeypatch: pytest.MonkeyPatch, setting: Setting, load: LoadOf
) -> None:
    cut = replace(setting, batch_tokens=128, accumulation_tokens=32, accumulation_lanes=2)
    balanced = replace(cut, balance=Balance(bias="sign", aux="switch", load=load))
    given = [scheduled(trial(balanced, JOINT, "completep-moe", seed=seed, aux_weight=0.1)) for seed in (1, 2)]
    eager = trained(*given)
    monkeypatch.setattr(trainer, "setup_for", lambda *_: CAPTURED)
    for _ in range(2):  # the second stack takes the captured step of the first
        *_, ended = trainer.train(Stack(trials=tuple(given), pieces=2, recompute=True), "cpu")
        assert isinstance(ended, Ended)
        assert list(map(numbers, ended.results)) == list(map(numbers, eager))
    assert Replayer.made == 1


def test_a_step_computes_no_entropies(setting: Setting) -> None:
    with Operations() as done:
        step = TrainStep(Stack(trials=(trial(setting),)), CAPTURED)
        output, grads = step.gradients(0)
        step.update(output, grads)
    assert "aten.sigmoid.default" in done.names
    assert "aten.special_entr.default" not in done.names
    with Operations() as done:
        assert len(router_entropies(output)) == 2
    assert "aten.special_entr.default" in done.names
