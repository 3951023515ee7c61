"""The experts with a library's products: the same results, in layers that it takes, and never in strict mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from expert_cases import CASES, Case, assert_right, by_kernels, gradients, use_products, with_gradients
from tolerances import assert_near
from torch import Tensor
from triton_cases import DEVICE, HALVES, TRITON, normal

from hpxfer.kernels import experts as module
from hpxfer.kernels import experts_library
from hpxfer.kernels.backend import Backend
from hpxfer.kernels.experts_launch import Rows, Weights
from hpxfer.kernels.routing import group_rows

pytestmark = pytest.mark.skipif(
    DEVICE.type == "cuda", reason="on a GPU the library takes bfloat16: test_experts_gpu.py"
)
TINY = Case(tokens=3, num_experts=2, num_active=2, width=8, hidden=8, swiglu=True, biases=True)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A backend that is not strict, while every entry of the table names the library."""
    return use_products(monkeypatch, "library")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of dimensions of the right side of every product of the library."""
    made: list[int] = []
    product = F.grouped_mm

    def noted(a: Tensor, b: Tensor, *, offs: Tensor) -> Tensor:
        """Leave garbage where a group without rows has a matrix, as the library may on a GPU."""
        made.append(b.dim())
        out = product(a, b, offs=offs)
        if b.dim() == 2:
            out[offs.diff(prepend=offs.new_zeros(1)) == 0] = torch.nan
        return out

    monkeypatch.setattr(experts_library.F, "grouped_mm", noted)
    return made


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_values_and_gradients_equal_the_loop(case: Case, fast: Backend, calls: list[int]) -> None:
    mine = assert_right(case, torch.float32, fast)
    matrices = 3 if case.swiglu else 2
    assert sorted(calls) == [2] * matrices + [3] * 2 * matrices
    empty = group_rows(case.chosen(), case.num_experts).load.flatten() == 0
    for name in ("w_in", "w_gate", "w_out", "b_in", "b_gate", "b_out"):
        if name in mine:
            assert torch.equal(mine[name][empty], torch.zeros_like(mine[name][empty])), name


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_as_near_as_torchs(dtype: torch.dtype, fast: Backend, calls: list[int]) -> None:
    assert_right(Case(trials=2, tokens=9, num_experts=3, num_active=2, swiglu=True, biases=True), dtype, fast)
    assert calls


def test_a_strict_layer_never_uses_the_library(fast: Backend, calls: list[int]) -> None:
    assert_right(TINY, torch.float32, replace(fast, strict=True))
    assert not calls


def test_sizes_that_the_library_refuses_run_in_our_own_kernels(fast: Backend, calls: list[int]) -> None:
    assert_right(replace(TINY, width=12), torch.float16, fast)
    assert not calls
    assert_right(replace(TINY, width=16), torch.float16, fast)
    assert calls


def test_on_a_gpu_the_library_takes_bfloat16_on_hopper_and_fewer_than_1024_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def takes(arch: str, dtype: torch.dtype, groups: int) -> bool:
        monkeypatch.setattr("hpxfer.kernels.configs.architecture", lambda device: arch)
        weights = Weights(torch.zeros(groups, 8, 8), None, torch.zeros(groups, 8, 8), None, None, None)
        return experts_library.can_run(torch.zeros(1, 8, dtype=dtype), weights)

    assert takes("sm90", torch.bfloat16, 1023)
    assert not takes("sm90", torch.bfloat16, 1024)
    assert not takes("sm90", torch.float16, 4)
    assert not takes("sm80", torch.bfloat16, 4)
    assert not takes("default", torch.bfloat16, 4)


def test_weights_that_start_anywhere_are_taken(fast: Backend, calls: list[int]) -> None:
    """A weight may be a view into a larger tensor. The library wants its first element on a multiple of 16 bytes."""
    leaves = TINY.leaves(torch.float32)
    moved = torch.cat([leaves.w_in.new_zeros(1), leaves.w_in.flatten()])[1:].view_as(leaves.w_in)
    assert moved.data_ptr() % 16
    wanted = by_kernels(leaves, TINY.chosen(), 2, fast)
    assert torch.equal(by_kernels(leaves._replace(w_in=moved), TINY.chosen(), 2, fast), wanted)
    assert calls


def test_master_weights_have_float32_gradients(fast: Backend, calls: list[int]) -> None:
    leaves = TINY.leaves(torch.float16)
    masters = {n: t.float() for n, t in leaves._asdict().items() if n[:2] in ("w_", "b_") and t is not None}
    dy = normal(3, 8, dtype=torch.float16)
    results = []
    for tested in (leaves, leaves._replace(**masters)):
        tested = with_gradients(tested)
        results.append(gradients(by_kernels(tested, TINY.chosen(), 2, fast), tested, dy))
    halves, wide = results
    for name in halves:
        assert wide[name].dtype == (torch.float32 if name in masters else halves[name].dtype), name
        assert torch.equal(wide[name].to(halves[name].dtype), halves[name]), name
    assert calls


def op_arguments(case: Case, activation: str) -> tuple[Any, ...]:
    leaves, groups = with_gradients(case.leaves(torch.float32)), group_rows(case.chosen(), case.num_experts, TRITON)
    weights = Weights(leaves.w_in, leaves.w_gate, leaves.w_out, leaves.b_in, leaves.b_gate, leaves.b_out)
    rows = Rows(groups.token, groups.slot, groups.ends)
    return (leaves.x, *weights, leaves.gate, *rows, case.num_active, 2, activation, False)


def test_relu(fast: Backend, calls: list[int]) -> None:
    given = op_arguments(replace(TINY, swiglu=False), "relu")
    dy = normal(3, 8)
    y, u, v = (tensor.detach() for tensor in module._forward(*given))
    dx = module._gradients(*given[:11], u, v, dy, *given[11:])[0]
    assert calls
    own_y, own_u, own_v = (tensor.detach() for tensor in module._forward(*given[:-1], True))
    own_dx = module._gradients(*given[:11], own_u, own_v, dy, *given[11:-1], True)[0]
    assert (u < 0).any()
    for mine, own in ((y, own_y), (dx, own_dx)):
        assert_near(mine, own, own.double())


def test_torch_agrees_with_what_the_op_says_of_itself(fast: Backend) -> None:
    torch.library.opcheck(module._forward, op_arguments(TINY, "swiglu"))


def test_experts_can_be_traced(fast: Backend) -> None:
    chosen, dy = TINY.chosen(), normal(3, 8)
    leaves, traced_leaves = (with_gradients(TINY.leaves(torch.float32)) for _ in range(2))
    traced = torch.compile(by_kernels, backend="aot_eager", fullgraph=True)
    eager = gradients(by_kernels(leaves, chosen, 2, fast), leaves, dy)
    compiled = gradients(traced(traced_leaves, chosen, 2, fast), traced_leaves, dy)
    for name, value in eager.items():
        assert torch.equal(value, compiled[name]), name
