"""A step that is compiled or captured once and replayed gives the bits of one that is made anew; switches of a run.

CUDA graphs need a GPU; here a stand-in runs the captured work again, into the tensors that it gave the first time.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_trials import JOINT, numbers, trained, trial
from torch import Tensor
from torch._dynamo.utils import counters
from trainings import Operations

from hpxfer.errors import HpxferError
from hpxfer.model.output import Output, router_entropies
from hpxfer.scaling.evaluate import parameterization
from hpxfer.spec.model_section import Balance, LoadOf
from hpxfer.train import device as device_module
from hpxfer.train import step as step_module
from hpxfer.train import trainer
from hpxfer.train.device import CPU, Setup, one_thread, setup_for, switched
from hpxfer.train.state import TrainState
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


def assert_shared(monkeypatch: pytest.MonkeyPatch, stacks: Sequence[tuple[Trial, ...]], steps: int) -> None:
    """Check that captured stacks have the bits of those that are made anew, by so many captured steps."""
    anew = [[numbers(member) for member in trained(*stack)] for stack in stacks]
    assert [[numbers(member) for member in captured(monkeypatch, *stack)] for stack in stacks] == anew
    assert Replayer.made == steps


def test_stacks_of_one_shape_share_a_captured_step(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = replace(setting, gradient_clip=0.5, steps=8, decay="cosine")
    stacks = [
        (trial(setting, JOINT, "completep-moe"), trial(setting, JOINT, lr=2.0**-8, seed=3)),
        (trial(setting, JOINT, lr=1e6), trial(setting, JOINT, "mssp-iii", seed=1, beta1=0.5, weight_decay=0.3)),
        (trial(setting, JOINT, "mup", residual_scale=0.3, eps=1e-4), trial(setting, JOINT, router_bias_lr=0.1)),
    ]
    monkeypatch.setattr(trainer, "saves_time", lambda *_: False)
    assert_shared(monkeypatch, stacks, 1)


def test_router_noise_is_written_into_a_captured_step(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trial(setting, JOINT, "mup-moe")
    stacks = ((plain, scheduled(plain)), (scheduled(plain, 0.3), scheduled(plain, 2.0)))
    assert_shared(monkeypatch, stacks, 1)
    captured(monkeypatch, plain, replace(plain, seed=1))  # without noise it is another graph
    assert Replayer.made == 2


def test_ties_are_written_into_a_captured_step(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trial(setting, replace(JOINT, depth=2), "mssp-i")
    random, fixed = (replace(plain, setting=replace(setting, ties=ties)) for ties in ("random", "fixed_bias"))
    stacks = ((plain, random), (replace(random, seed=1), plain), (fixed, random), (random, replace(fixed, seed=4)))
    assert_shared(monkeypatch, stacks, 2)  # with a bias it is another graph
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


@pytest.mark.first
@pytest.mark.parametrize("looks", [4, 1])
def test_a_captured_stack_compacts(setting: Setting, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    longer = replace(setting, steps=12)
    stack = [scheduled(trial(longer, lr=rate, seed=k)) for k, rate in enumerate((1e6, 2.0**-6, 30.0, 2.0**-7))]
    monkeypatch.setattr(trainer, "saves_time", lambda *_: True)
    results = captured(monkeypatch, *stack, setup=replace(CAPTURED, steps_per_read=looks))
    assert Replayer.made > 1
    assert [numbers(result) for result in results] == [numbers(member) for member in trained(*stack)]


def test_nothing_is_kept_that_is_not_captured_or_after_an_error(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, stack = StepCache(), Stack(trials=(trial(setting),))
    assert kept.step_for(stack, CPU) is not kept.step_for(stack, CPU)
    assert kept.step_for(stack, CAPTURED) is kept.step_for(stack, CAPTURED)
    kept.clear()
    assert kept._step is None
    captured(monkeypatch, trial(setting))

    def broken(self: TrainStep, step: int) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "gradients", broken)
        with pytest.raises(MemoryError):
            captured(patch, trial(setting))
    assert trainer._steps._step is None


@pytest.mark.first
@pytest.mark.parametrize("load", ["last_step", "batch"])
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


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trace as for a GPU, but run the traced operations directly, without generated code."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    yield
    torch._dynamo.reset()


def losses(state: TrainState) -> Tensor:
    out = []
    for step in range(3):
        output, grads = state.forward_backward(step)
        out.append(output.losses_KT.detach())
        state.update(output, grads)
    return torch.stack(out)


# The compiler reads tensors and functions, and warns about that itself.
@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore::DeprecationWarning")
def test_stacks_of_one_shape_share_the_compiled_pass(setting: Setting) -> None:
    setting = replace(setting, precision="bfloat16")  # grouped products of float32 are not traced
    first = Stack(trials=(trial(setting, JOINT, "completep-moe"), trial(setting, JOINT, seed=1)))
    second = Stack(
        trials=(trial(setting, JOINT, "mup", lr=0.1, residual_scale=0.3), trial(setting, JOINT, "mssp-iii", seed=9))
    )
    state = TrainState(first, CPU.device, compiled=True)
    with torch.no_grad():
        state.forward(*state.batch(0), 0)  # what is made on first use, as before a capture
    assert torch.equal(losses(state), losses(TrainState(first, CPU.device)))
    made = dict(counters["stats"])
    assert made["unique_graphs"] > 0
    state.set_trials(second)
    state.reset()
    found = losses(state)
    assert torch.equal(found, losses(TrainState(second, CPU.device)))
    assert not torch.equal(found[:, 0], losses(TrainState(first, CPU.device))[:, 0])
    assert dict(counters["stats"]) == made


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore::DeprecationWarning")
@torch._dynamo.config.patch(recompile_limit=1)  # monkeypatch would take the setting away when it ends
def test_a_step_is_compiled_however_many_were_before(setting: Setting) -> None:
    setting, graphs = replace(setting, precision="bfloat16"), []
    for size in (1, 2):
        counters.clear()
        stack = Stack(trials=tuple(trial(setting, seed=k) for k in range(size)))
        step = TrainStep(stack, replace(CPU, compiled=True))
        with torch.no_grad():
            step.state.forward(*step.state.batch(0), 0)
        step.gradients(0)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] > 0


def test_on_a_cpu_strict_and_fast_are_the_same_code_and_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for determinism in (None, "strict", "fast"):
        found = setup_for("cpu", determinism)
        assert (found.determinism, found.backend.name, found.backend.strict) == (determinism or "strict", "torch", True)
        assert (found.compiled, found.captured, found.steps_per_read) == (False, False, 1)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(HpxferError, match="triton"):
        setup_for("cpu", kernels="triton")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make this machine look like one with an H200 and triton."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return monkeypatch


def test_cuda_captures_and_compiles_its_steps_and_never_falls_back_to_torch(cuda: pytest.MonkeyPatch) -> None:
    found = setup_for()
    assert (found.backend.name, found.compiled, found.captured) == ("triton", True, True)
    aid = setup_for(kernels="torch")
    assert (aid.backend.name, aid.compiled, aid.captured) == ("torch", False, False)
    cuda.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HpxferError, match=r"triton is not installed; pip install 'hpxfer\[triton\]'"):
        setup_for()


def test_one_thread_and_exact_products_while_it_runs() -> None:
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction

    def run() -> None:
        with switched(CPU):
            assert torch.get_num_threads() == 1
            assert not matmul.allow_tf32
            assert not matmul.allow_bf16_reduced_precision_reduction
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert torch.get_num_threads() == 2
    assert (matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction) == before


@pytest.mark.parametrize(("determinism", "strict"), [("strict", True), ("fast", False)])
def test_strict_on_cuda_asks_for_deterministic_algorithms(determinism: str, strict: bool) -> None:
    setup = Setup(device=torch.device("cuda"), determinism=determinism, backend=CPU.backend)  # type: ignore[arg-type]
    assert not torch.are_deterministic_algorithms_enabled()
    with switched(setup):
        assert torch.are_deterministic_algorithms_enabled() is strict
        assert torch.utils.deterministic.fill_uninitialized_memory is not strict  # type: ignore[attr-defined]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_cublas_gets_its_workspace_before_cuda_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.setenv(name, "")  # so that it is put back
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    device_module.fix_workspace()
    assert device_module.os.environ[name] == ":4096:8"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    device_module.fix_workspace()  # as it should be
    monkeypatch.setenv(name, ":0:0")
    with pytest.raises(HpxferError, match="before CUDA starts, got ':0:0'"):
        device_module.fix_workspace()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_is_fast_by_default() -> None:
    found = setup_for("cuda")
    assert found.determinism == "fast"
    assert not found.backend.strict
    assert found.backend.is_triton
    assert found.captured
