"""A strict training step on Triton's kernels: a trial has the same bits alone and between others.

Without a GPU this is one step of a tiny model in Triton's interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_dit import RANDOM
from tiny_dit import trials as dit_trials
from tiny_trials import BASE, text_setting, trial
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton_cases import DEVICE, TRITON

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.scaling.shape import Shape
from hpxfer.spec.model_section import Balance
from hpxfer.train.device import Setup, setup_for, switched
from hpxfer.train.step import TrainStep
from hpxfer.trial import Setting, Trial
from hpxfer.trial.stack import Stack

pytestmark = pytest.mark.slow

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SHAPES = {
    "top-1": BASE,
    "top-2, shared": replace(BASE, num_experts=8, num_active=2, num_shared=1, shared_width=16),
}
# Samples with conditions of their own, all of whose parts have a gradient at the first step.
DIT = dit_trials(
    dit={**RANDOM, "positions": "learned"},
    base={"depth": 1, "num_shared": 1, "shared_ratio": 1},
    training={"batch_samples": 4, "validation_samples": 4},
    axes={"depth": [2]},
)
if DEVICE.type == "cuda":
    # Read when CUDA starts, which no import does.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A setting with data, in which every kind of gradient is summed."""
    made = text_setting(tmp_path_factory.mktemp("data"))
    return replace(made, norm_gains=True, biases=True, gradient_clip=0.5)


def modern(setting: Setting) -> Setting:
    """Return the setting with the norms, rotations and gates of later models."""
    norms = replace(setting, biases=False, norm="rmsnorm", norm_eps=1e-6, qk_norm="head", positions="rope")
    return replace(norms, rope_share=0.5, attention_gate=True, ffn="swiglu", gate="normalized_softmax")


class Capturable(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that may wait for the host in torch's deterministic mode: no CUDA graph can hold them."""

    REFUSED = ("scatter", "index_put", "index_copy", "index_add", "masked_select", "nonzero", "local_scalar", "cumsum")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        assert not any(name in str(func) for name in self.REFUSED), func
        return func(*args, **(kwargs or {}))


def steps(setup: Setup, count: int, *trials: Trial, **way: Any) -> list[tuple[Tensor, ...]]:
    """Return what every trial has after some steps: parameters, router biases and the last losses."""
    with switched(setup):
        made = TrainStep(Stack(trials=trials, **way), setup)
        with Capturable():  # type: ignore[no-untyped-call]
            for number in range(count):
                output, grads = made.gradients(number)
                made.update(output, grads)
        state = made.state
        parts = [copy for copies in state.layout.weights(state.flat).values() for copy in copies]
        losses, bias = output.losses_KT.detach(), state.router_bias.transpose(0, 1)
        return [tuple(loss[k].clone() for loss in (*parts, bias, losses)) for k in range(len(trials))]


def assert_same_bits(setup: Setup, count: int, setting: Setting, shape: Shape) -> None:
    """Compare a trial alone and in the middle of three, beside a wild one."""
    mine = trial(setting, shape, seed=0)
    others = trial(setting, shape, seed=1, init_scale=1e30), trial(setting, shape, seed=2, lr=0.5, beta1=0.5)
    (alone,) = steps(setup, count, mine)
    assert all(tensor.isfinite().all() for tensor in alone)
    together = steps(setup, count, others[0], mine, others[1])
    for tensor, other in zip(alone, together[1], strict=True):
        assert torch.equal(tensor, other)
    assert not torch.equal(together[2][-1], alone[-1])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, at the wild trial: the interpreter is made of it
@pytest.mark.skipif(DEVICE.type == "cuda", reason="Triton's interpreter is for machines without a GPU")
@pytest.mark.parametrize("is_modern", [False, True])
def test_a_step_in_the_interpreter(is_modern: bool, setting: Setting) -> None:
    setup = Setup(device=DEVICE, determinism="strict", backend=TRITON)
    small = replace(modern(setting) if is_modern else setting, context=8, batch_tokens=16)
    assert_same_bits(setup, 1, small, replace(SHAPES["top-2, shared"], depth=1))


def assert_same_in_any_way(setup: Setup, count: int, setting: Setting, shape: Shape) -> None:
    """Compare a trial whose pieces are computed one by one with other ways, and beside another trial."""
    tested = trial(setting, shape, aux_weight=0.1)
    (expected,) = steps(setup, count, tested)
    assert all(tensor.isfinite().all() for tensor in expected)
    for pieces, again in ((1, True), (2, False), (2, True)):
        found = steps(
            setup, count, trial(setting, shape, seed=7, aux_weight=0.1), tested, pieces=pieces, recompute=again
        )
        for mine, other in zip(expected, found[1], strict=True):
            assert torch.equal(mine, other), (pieces, again)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="Triton's interpreter is for machines without a GPU")
def test_micro_batches_in_the_interpreter(setting: Setting) -> None:
    setup = Setup(device=DEVICE, determinism="strict", backend=TRITON)
    cut = replace(modern(setting), context=8, batch_tokens=16, accumulation_tokens=8, balance=Balance(aux="switch"))
    assert_same_in_any_way(setup, 1, cut, replace(SHAPES["top-2, shared"], depth=1, num_experts=4))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="Triton's interpreter is for machines without a GPU")
def test_a_step_of_samples_in_the_interpreter() -> None:
    setup = Setup(device=DEVICE, determinism="strict", backend=TRITON)
    (alone,), together = steps(setup, 1, DIT[0]), steps(setup, 1, *DIT[1:3], DIT[0])
    for tensor, other in zip(alone, together[2], strict=True):
        assert torch.equal(tensor, other)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_micro_batches_on_the_gpu(precision: str, setting: Setting) -> None:
    balance = Balance(aux="switch")
    batch = {"batch_tokens": 1024, "validation_tokens": 1024, "accumulation_tokens": 128, "accumulation_lanes": 2}
    cut = replace(modern(setting), **batch, balance=balance)
    wide = replace(SHAPES["top-2, shared"], width=128, expert_width=128, head_dim=32, shared_width=256)
    for is_captured in (True, False):
        setup = replace(setup_for("cuda", "strict"), captured=is_captured)
        assert_same_in_any_way(setup, 5, replace(cut, precision=precision), wide)


@pytest.mark.parametrize("kind", ["plain", "modern", "dit"])
def test_gradients_are_those_of_torch(kind: str, setting: Setting) -> None:
    is_modern = kind == "modern"
    small = replace(modern(setting) if is_modern else setting, batch_tokens=32)
    shape = replace(SHAPES["top-2, shared"], depth=1, kv_heads=1 if is_modern else 0)
    tested = DIT[0] if kind == "dit" else trial(small, shape, lr=0.5)

    def found(backend: Backend) -> tuple[Tensor, dict[str, Tensor]]:
        setup = Setup(device=DEVICE, determinism="strict", backend=backend)
        with switched(setup):
            output, grads = TrainStep(Stack(trials=(tested,)), setup).gradients(0)
        return output.losses_KT.detach(), {name: torch.stack(list(copies)) for name, copies in grads.items()}

    (losses, grads), (own_losses, own_grads) = found(TRITON), found(TORCH)
    torch.testing.assert_close(losses, own_losses, rtol=1e-5, atol=1e-5)
    for name, grad in grads.items():
        # The gradient of a bias of keys is zero but for rounding.
        distance = (grad - own_grads[name]).norm() / own_grads[name].norm().clamp(min=1e-3)
        assert distance < 1e-4, (name, float(distance))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("is_modern", [False, True])
def test_steps_on_the_gpu(is_modern: bool, shape: Shape, precision: str, setting: Setting) -> None:
    wide = replace(shape, width=128, expert_width=128, head_dim=32, shared_width=8 * shape.shared_width)
    chosen = replace(modern(setting) if is_modern else setting, precision=precision)
    chosen = replace(chosen, batch_tokens=512, validation_tokens=512)
    assert_same_bits(setup_for("cuda", "strict"), 5, chosen, replace(wide, kv_heads=2 if is_modern else 0))


@pytest.mark.gpu
@needs_gpu
def test_captured_steps_are_those_that_are_not(setting: Setting) -> None:
    setup = setup_for("cuda", "strict")
    assert setup.captured
    tested = trial(replace(setting, precision="bfloat16"))
    (captured,), (plain,) = steps(setup, 5, tested), steps(replace(setup, captured=False), 5, tested)
    for mine, other in zip(captured, plain, strict=True):
        assert torch.equal(mine, other)
