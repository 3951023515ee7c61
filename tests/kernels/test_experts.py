"""The experts of a layer against a loop over tokens, and the bits of a trial in any stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from expert_cases import CASES, Case, Leaves, assert_right, by_kernels, gradients, with_gradients
from tolerances import assert_near
from torch import Tensor
from triton_cases import BACKENDS, HALVES, TRITON, normal

from hpxfer.kernels import experts as module
from hpxfer.kernels.backend import Backend
from hpxfer.kernels.experts_launch import Rows, Weights
from hpxfer.kernels.routing import group_rows


@BACKENDS
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_values_and_gradients_equal_the_loop(case: Case, backend: Backend) -> None:
    mine = assert_right(case, torch.float32, backend)
    empty = group_rows(case.chosen(), case.num_experts).load.flatten() == 0
    for name in ("w_in", "w_gate", "w_out", "b_in", "b_gate", "b_out"):
        if name in mine:
            assert torch.equal(mine[name][empty], torch.zeros_like(mine[name][empty])), name


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_are_as_near_as_torchs(dtype: torch.dtype) -> None:
    assert_right(Case(trials=2, tokens=9, num_experts=3, num_active=2, swiglu=True), dtype, TRITON)


def test_master_weights_have_float32_gradients() -> None:
    case = Case(tokens=5, num_experts=2, width=8, hidden=8, biases=True)
    leaves = case.leaves(torch.float16)
    masters = {
        name: tensor.float()
        for name, tensor in leaves._asdict().items()
        if name[:2] in ("w_", "b_") and tensor is not None
    }
    dy = normal(5, 8, dtype=torch.float16)
    results = []
    for tested in (leaves, leaves._replace(**masters)):
        tested = with_gradients(tested)
        results.append(gradients(by_kernels(tested, case.chosen(), 2, TRITON), tested, dy))
    halves, wide = results
    for name in halves:
        assert wide[name].dtype == (torch.float32 if name in masters else halves[name].dtype), name
        assert torch.equal(wide[name].to(halves[name].dtype), halves[name]), name


def test_relu() -> None:
    case = Case(tokens=6, num_experts=2, width=8, hidden=8)
    leaves, groups = case.leaves(torch.float32), group_rows(case.chosen(), 2, TRITON)
    weights = Weights(leaves.w_in, None, leaves.w_out, None, None, None)
    dy = normal(6, 8)
    rows = Rows(groups.token, groups.slot, groups.ends)
    y, u, v = module._forward(leaves.x, *weights, leaves.gate, *rows, 1, 2, "relu", True)
    dx = module._gradients(leaves.x, *weights, leaves.gate, *rows, u, v, dy, 1, 2, "relu", True)[0]
    x = leaves.x.double().requires_grad_()
    chosen = case.chosen().flatten()
    hidden = F.relu(torch.einsum("md,mdh->mh", x, leaves.w_in[chosen].double()))
    exact = leaves.gate.double() * torch.einsum("mh,mhd->md", hidden, leaves.w_out[chosen].double())
    assert_near(y, exact.float(), exact, "y")
    exact_dx = torch.autograd.grad(exact, x, dy.double())[0]
    assert_near(dx, exact_dx.float(), exact_dx, "dx")


def of_trial(leaves: Leaves, trial: int, trials: int) -> Leaves:
    return Leaves(*(None if leaf is None else leaf.chunk(trials)[trial].contiguous() for leaf in leaves))


STACKS = {
    "SwiGLU, top-2": Case(
        trials=3, tokens=20, num_experts=2, num_active=2, width=8, hidden=16, swiglu=True, biases=True
    ),
    "sums in parts": Case(trials=3, tokens=130, num_experts=1, width=8, hidden=8),
}


@pytest.mark.parametrize("case", STACKS.values(), ids=STACKS.keys())
def test_bits_of_a_trial_do_not_depend_on_its_stack(case: Case) -> None:
    """K = 1 and K = 3, another slot, and a neighbor that is not finite."""
    leaves, chosen = case.leaves(torch.float32), case.chosen()
    dys = normal(3 * case.tokens, case.width, seed=10).chunk(3)

    def run(given: Leaves, chosen_KTA: Tensor, dy_MD: Tensor) -> dict[str, Tensor]:
        given = with_gradients(given)
        return gradients(by_kernels(given, chosen_KTA, case.num_experts, TRITON), given, dy_MD)

    alone = run(of_trial(leaves, 2, 3), chosen[2:], dys[2])
    order = [2, 0, 1]
    moved = Leaves(*(None if leaf is None else torch.cat([leaf.chunk(3)[k] for k in order]) for leaf in leaves))
    moved.x[case.tokens : 2 * case.tokens] = torch.nan
    stacked = run(moved, chosen[order], torch.cat([dys[k] for k in order]))
    assert stacked["y"].chunk(3)[1].isnan().all()
    for name, value in alone.items():
        assert torch.equal(value, stacked[name].chunk(3)[0]), name


def test_two_runs_have_the_same_bits_strict_or_not() -> None:
    case = CASES["sums in parts"]
    tested, other = (assert_right(case, torch.float32, replace(TRITON, strict=False)) for _ in range(2))
    assert all(torch.equal(tested[name], other[name]) for name in tested)


def op_arguments(case: Case) -> tuple[object, ...]:
    leaves, groups = with_gradients(case.leaves(torch.float32)), group_rows(case.chosen(), case.num_experts, TRITON)
    weights = (leaves.w_in, leaves.w_gate, leaves.w_out, leaves.b_in, leaves.b_gate, leaves.b_out)
    activation = "swiglu" if case.swiglu else "gelu"
    rows = (groups.token, groups.slot, groups.ends)
    return (leaves.x, *weights, leaves.gate, *rows, case.num_active, 2, activation, True)


TINY = {
    "plain": Case(tokens=3, num_experts=2, width=8, hidden=8),
    "all": Case(tokens=3, num_experts=2, num_active=2, width=8, hidden=8, swiglu=True, biases=True),
}


@pytest.mark.parametrize("case", TINY.values(), ids=TINY.keys())
def test_torch_agrees_with_what_the_op_says_of_itself(case: Case) -> None:
    torch.library.opcheck(module._forward, op_arguments(case))


def test_experts_can_be_traced() -> None:
    case = TINY["all"]
    chosen, dy = case.chosen(), normal(3, 8)
    leaves, traced_leaves = (with_gradients(case.leaves(torch.float32)) for _ in range(2))
    traced = torch.compile(by_kernels, backend="aot_eager", fullgraph=True)
    eager = gradients(by_kernels(leaves, chosen, 2, TRITON), leaves, dy)
    compiled = gradients(traced(traced_leaves, chosen, 2, TRITON), traced_leaves, dy)
    for name, value in eager.items():
        assert torch.equal(value, compiled[name]), name
