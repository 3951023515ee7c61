"""StackOptimizer with Triton kernels moves as with torch's code. So does a rule that has no kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tolerances import assert_near, is_near
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.model.flat import FlatLayout
from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.train import optimizer
from hpxfer.train.optimizer import StackOptimizer
from hpxfer.train.optimizers import OPTIMIZERS

TRITON = Backend(name="triton", reason="a test", strict=True)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAYOUT = FlatLayout(
    parameters=(
        ParameterSpec(name="wide", role="embedding", size=(9, 8)),
        ParameterSpec(name="block", role="router", size=(3, 8), blocks=(0, 1)),
    ),
    num_trials=3,
)
DEAD = 1


def normal(seed: int) -> Tensor:
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def moved(case: str, backend: Backend, *, clip: float | None = None, factor: float = 1.0) -> Tensor:
    """Return the parameters after four steps, the last two without trial DEAD."""
    flat, name = normal(0), case.removesuffix(" with momentum")
    made = StackOptimizer(LAYOUT, flat, name, backend, has_momentum=name != case)
    resolved = [
        {
            role: Multipliers(init_std=1.0, lr=0.1 * (k + 1), eps=1e-3, weight_decay=0.2 * k, forward=1.0)
            for role in ("embedding", "router")
        }
        for k in range(3)
    ]
    made.set_hps([(0.9, 0.95), (0.5, 0.9), (0.0, 0.0)], resolved, [0.9, 0.5, 0.0])
    for step in range(4):
        made.alive[DEAD] = step < 2
        made.step(LAYOUT.weights(normal(step + 1)), factor, clip)
    return flat


class Operations(TorchDispatchMode):
    """Records the names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def set_decay(made: StackOptimizer, weight_decay: float) -> None:
    """Give all trials the same HPs, with this weight decay."""
    entry = Multipliers(init_std=1.0, lr=0.1, eps=1e-3, weight_decay=weight_decay, forward=1.0)
    made.set_hps([(0.9, 0.95)] * 3, [dict.fromkeys(("embedding", "router"), entry)] * 3)


def operations(weight_decay: float, dead: bool) -> list[str]:
    """Return the operations of a step of AdamW with Triton kernels."""
    made = StackOptimizer(LAYOUT, normal(0), "adamw", TRITON)
    set_decay(made, weight_decay)
    made.alive[DEAD] = not dead
    grads = LAYOUT.weights(normal(1))
    with Operations() as seen:
        made.step(grads, 1.0, 2.0)
    return seen.names


@pytest.fixture(params=["with a kernel", "without a kernel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the rules a kernel or none, as a plug-in does that has no Triton code."""
    if request.param == "without a kernel":
        rules = {name: replace(OPTIMIZERS.get(name), kernel=None) for name in ("adamw", "sgd")}
        monkeypatch.setattr(optimizer, "OPTIMIZERS", rules)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("clip", [None, 2.0])
@pytest.mark.parametrize("name", ["adamw", "sgd", "sgd with momentum"])
def test_triton_moves_as_torch_does(name: str, clip: float | None) -> None:
    mine, own = moved(name, TRITON, clip=clip), moved(name, TORCH, clip=clip)
    assert_near(mine, own, own)
    other = moved(name, TORCH, clip=clip, factor=1.01)
    assert not is_near(mine, other, other)


@pytest.mark.usefixtures("kernel")
def test_a_captured_step_serves_every_stack() -> None:
    """A CUDA graph replays the operations of the first stack. They may not depend on HPs or on who is alive."""
    first = operations(0.0, dead=False)
    assert first
    assert operations(0.3, dead=False) == first
    assert operations(0.0, dead=True) == first


@pytest.mark.usefixtures("kernel")
def test_a_block_of_triton_is_a_whole_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's blocks fit into a CPU's cache. On a GPU that would be many launches."""
    monkeypatch.setattr(optimizer, "BLOCK_ELEMENTS", 8)
    torchs, mine = (len(StackOptimizer(LAYOUT, normal(0), "adamw", backend)._blocks) for backend in (TORCH, TRITON))
    assert (torchs, mine) == (3 * 9 + 2 * 3 * 3, 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("kernel")
def test_a_replayed_step_has_the_bits_of_an_eager_one() -> None:
    """The graph was captured without weight decay, and the next stack has it."""
    flat, grads = normal(0), LAYOUT.weights(normal(1))
    made = StackOptimizer(LAYOUT, flat, "adamw", TRITON)
    set_decay(made, 0.0)
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        made.step(grads, 1.0, None)  # compiles what a capture may not
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.step(grads, 1.0, None)
    made.reset()
    set_decay(made, 0.3)
    flat.copy_(normal(0))
    graph.replay()
    eager = normal(0)
    other = StackOptimizer(LAYOUT, eager, "adamw", TRITON)
    set_decay(other, 0.3)
    other.step(grads, 1.0, None)
    assert torch.equal(flat, eager)
