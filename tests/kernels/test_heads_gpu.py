"""RMS norms and heads compiled for the GPU: errors at realistic sizes, bits in any stack, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from head_cases import HeadCase
from tolerances import assert_near
from torch import Tensor
from triton_cases import TRITON, captured, normal

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.norm import added_norm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
FAST = replace(TRITON, strict=False)
REAL = {"context": 1024, "sequences": 8, "num_trials": 1}
CASES = {
    "mixtral": HeadCase(heads=32, head_dim=128, **REAL),
    "qwen3-moe": HeadCase(heads=32, head_dim=128, scope="head", **REAL),
    "olmoe": HeadCase(heads=16, head_dim=128, scope="all", **REAL),
    "glm4-moe": HeadCase(heads=96, head_dim=128, scope="head", share=0.5, **REAL),
    "stack": HeadCase(heads=4, head_dim=32, scope="head", num_trials=64, context=64, sequences=8),
    "odd": HeadCase(heads=3, head_dim=20, scope="all", kind="layernorm", bias=True, num_trials=3, context=100),
}


def norm_step(backend: Backend, trials: slice = slice(None)) -> Callable[[], list[Tensor]]:
    """Return what computes the sum, its norm, and the gradients of x, y and the gain, at 512 tokens of each trial."""
    given = [normal(64, 512, 520, seed=seed, dtype=torch.bfloat16)[trials].clone() for seed in range(4)]
    leaves = [one.requires_grad_() for one in (*given[:2], 1 + 0.3 * normal(64, 520, seed=9)[trials])]

    def step() -> list[Tensor]:
        outputs = added_norm(*leaves, None, backend, kind="rmsnorm")
        return [*outputs, *torch.autograd.grad(outputs, leaves, given[2:])]

    return step


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_errors_are_no_larger_than_torchs(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    mine, own, exact = case.run(TRITON, dtype), case.run(TORCH, dtype), case.plain(dtype)
    for which, *tensor in zip(("y", "dx", "dgain", "dbias"), mine, own, exact, strict=False):
        assert_near(*tensor, name=which)


def test_bits_of_a_trial_do_not_depend_on_its_stack() -> None:
    together = norm_step(TRITON)()
    for k in (0, 40):
        for mine, whole in zip(norm_step(TRITON, slice(k, k + 1))(), together, strict=True):
            assert torch.equal(mine[0], whole[k])


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # the capture took its gradients elsewhere
@pytest.mark.parametrize("backend", [TRITON, FAST], ids=["strict", "fast"])
def test_nothing_waits_for_the_host_and_a_graph_replays_it(backend: Backend) -> None:
    heads, norms = CASES["stack"].step(backend, torch.bfloat16), norm_step(backend)

    def step() -> list[Tensor]:
        return [*heads(), *norms()]

    replayed, graph = captured(step)
    graph.replay()
    for mine, other in zip(step(), replayed, strict=True):
        assert torch.equal(mine, other)
