"""The router compiled for the GPU: errors at realistic sizes, bits in any stack, CUDA graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from router_cases import OUTPUTS, RouterCase, router_case
from tolerances import assert_near
from torch import Tensor
from triton_cases import TRITON, captured, normal

from hpxfer.kernels.router import SCORES
from hpxfer.kernels.routing import choose_experts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
FAST = replace(TRITON, strict=False)
CASES: dict[str, dict[str, Any]] = {
    "base": {"trials": 1, "tokens": 32768, "width": 512, "num_experts": 4},
    "wide": {"trials": 1, "tokens": 32768, "width": 2048, "num_experts": 64, "num_active": 8, "score": "softmax"},
    "many experts": {"trials": 1, "tokens": 4096, "width": 1024, "num_experts": 256, "num_active": 8},
    "odd, in groups": {"trials": 3, "tokens": 1000, "width": 520, "num_experts": 12, "num_active": 4, "num_groups": 2},
    "stack": {"trials": 64, "tokens": 512, "width": 128, "num_experts": 8, "num_active": 2, "ties": True},
    "widest": {"trials": 1, "tokens": 512, "width": 8192, "num_experts": 16, "num_active": 2},
}


def made(name: str, dtype: torch.dtype = torch.bfloat16, **more: Any) -> RouterCase:
    return router_case(**CASES[name], dtype=dtype, **more)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_errors_are_no_larger_than_torchs(name: str, dtype: torch.dtype) -> None:
    case = made(name, dtype, parts=("noise",))
    routed, grads = case.run(TRITON)
    (own, own_grads), (exact, exact_grads) = case.plain(), case.plain(torch.float64)
    for output, *tensors in zip(OUTPUTS, routed, own, exact, strict=False):
        assert_near(*tensors, name=output)
    for leaf, grad in grads.items():
        assert_near(grad, own_grads[leaf], exact_grads[leaf], leaf)


@pytest.mark.parametrize("name", CASES)
def test_the_product_is_that_of_float32(name: str) -> None:
    """Beside the same h. Weights rounded to bfloat16 or TF32 would miss by 1e4 or 1e3 times as much."""
    case = made(name)
    routed, _ = case.run(TRITON)
    w = case.given["w"]
    assert_near(routed.logits, torch.bmm(routed.h.float(), w), torch.bmm(routed.h.double(), w.double()))
    assert routed.chosen is not None
    scores = SCORES[case.score or "sigmoid"](routed.logits.detach(), case.scale.view(-1, 1, 1))
    chosen = choose_experts(scores, case.balance, case.num_active, case.num_groups, ties_K=case.ties)
    # The exponentials of the kernel and of torch differ in the last bit: two scores that do may change places.
    assert float((chosen == routed.chosen).float().mean()) > 0.999


@pytest.mark.parametrize("name", ["odd, in groups", "stack"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_bits_of_a_trial_do_not_depend_on_its_stack(name: str, dtype: torch.dtype) -> None:
    case = made(name, dtype, parts=("gain", "bias", "noise"))
    together, grads = case.run(TRITON)
    for k in (0, 2):
        alone, own = case.trial(k).run(TRITON)
        for mine, whole in zip(alone, together, strict=True):
            assert mine is not None
            assert whole is not None
            assert torch.equal(mine[0], whole[k])
        for leaf, grad in own.items():
            assert torch.equal(grad[0], grads[leaf][k]), leaf


@pytest.mark.parametrize("backend", [TRITON, FAST], ids=["strict", "fast"])
def test_nothing_waits_for_the_host_and_a_graph_replays_it(backend: Any) -> None:
    case = made("base", parts=("noise",))

    def step() -> tuple[Tensor, ...]:
        routed, grads = case.run(backend)
        assert routed.chosen is not None
        return routed.h, routed.logits, routed.chosen, *grads.values()

    replayed, graph = captured(step)
    case.given["x"].copy_(normal(*case.given["x"].shape, seed=20))
    graph.replay()
    for mine, other in zip(step(), replayed, strict=True):
        assert torch.equal(mine, other)
