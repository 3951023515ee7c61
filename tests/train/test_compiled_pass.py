"""The compiled forward pass has the numbers of the plain one. Other HPs, seeds or tables compile nothing anew."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tiny_trials import JOINT, trial
from torch import Tensor
from torch._dynamo.utils import counters

from hpxfer.train import device
from hpxfer.train.state import TrainState
from hpxfer.train.step import TrainStep
from hpxfer.trial import Setting
from hpxfer.trial.stack import Stack

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
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
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore::DeprecationWarning")
def test_stacks_of_one_shape_share_the_compiled_pass(setting: Setting) -> None:
    setting = replace(setting, precision="bfloat16")  # grouped products of float32 are not traced
    first = Stack(trials=(trial(setting, JOINT, "completep-moe"), trial(setting, JOINT, seed=1)))
    second = Stack(
        trials=(trial(setting, JOINT, "mup", lr=0.1, residual_scale=0.3), trial(setting, JOINT, "mssp-iii", seed=9))
    )
    state = TrainState(first, CPU, compiled=True)
    with torch.no_grad():
        state.forward(*state.batch(0), 0)  # what is made on first use, as before a capture
    assert torch.equal(losses(state), losses(TrainState(first, CPU)))
    made = dict(counters["stats"])
    assert made["unique_graphs"] > 0
    state.set_trials(second)
    state.reset()
    found = losses(state)
    assert torch.equal(found, losses(TrainState(second, CPU)))
    assert not torch.equal(found[:, 0], losses(TrainState(first, CPU))[:, 0])
    assert dict(counters["stats"]) == made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore::DeprecationWarning")
@torch._dynamo.config.patch(recompile_limit=1)  # monkeypatch would take the setting away when it ends
def test_a_step_is_compiled_however_many_were_before(setting: Setting) -> None:
    setting, graphs = replace(setting, precision="bfloat16"), []
    for size in (1, 2):
        counters.clear()
        stack = Stack(trials=tuple(trial(setting, seed=k) for k in range(size)))
        step = TrainStep(stack, replace(device.CPU, compiled=True))
        with torch.no_grad():
            step.state.forward(*step.state.batch(0), 0)
        step.gradients(0)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] > 0
