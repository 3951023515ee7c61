"""The Triton choice of experts and counting sort give exactly what torch's sorts give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from triton_cases import DEVICE, TRITON, integers, normal

from hpxfer.kernels import routing
from hpxfer.kernels.routing import BY_INDEX, Groups, choose_experts, group_rows, of_chosen

SIZES = [(1, 1, 1, 1, 1), (1, 5, 4, 1, 1), (3, 37, 5, 2, 1), (2, 40, 8, 4, 2), (2, 33, 100, 3, 1), (1, 7, 12, 12, 3)]


def assert_same_rows(mine: Groups, torchs: Groups) -> None:
    for name, tensor, other in zip(Groups._fields, mine, torchs, strict=True):
        assert torch.equal(tensor.long(), other.long()), name
    assert (mine.ends.dtype, mine.load.dtype) == (torch.int32, torch.int64)


@pytest.mark.parametrize(("trials", "tokens", "num_experts", "num_active", "num_groups"), SIZES)
def test_choice_and_order_are_torchs(
    trials: int, tokens: int, num_experts: int, num_active: int, num_groups: int
) -> None:
    # Few values, so that many tie.
    gates = integers(3, trials, tokens, num_experts).float() - 1
    bias = integers(3, trials, num_experts, seed=1).float() - 1
    chosen = choose_experts(gates, bias, num_active, num_groups, TRITON)
    assert torch.equal(chosen, choose_experts(gates, bias, num_active, num_groups))
    assert_same_rows(group_rows(chosen, num_experts, TRITON), group_rows(chosen, num_experts))
    ties = torch.tensor([5, BY_INDEX, 2**31 - 1][:trials], dtype=torch.int32, device=DEVICE)
    broken = choose_experts(gates, bias, num_active, num_groups, TRITON, ties)
    assert torch.equal(broken, choose_experts(gates, bias, num_active, num_groups, ties_K=ties))


@pytest.mark.parametrize(("trials", "tokens", "num_experts", "num_active", "num_groups"), SIZES)
def test_the_values_of_the_chosen_and_their_gradient_are_a_gathers(
    trials: int, tokens: int, num_experts: int, num_active: int, num_groups: int
) -> None:
    values = normal(trials, tokens, num_experts).requires_grad_()
    chosen = choose_experts(values, normal(trials, num_experts, seed=1), num_active, num_groups)
    dy = normal(trials, tokens, num_active, seed=2)
    dy[0, 0, 0] = torch.nan  # stays where it is
    mine, torchs = of_chosen(values, chosen, TRITON), of_chosen(values, chosen)
    assert torch.equal(mine, torchs)
    (own,), (expected,) = torch.autograd.grad(mine, values, dy), torch.autograd.grad(torchs, values, dy)
    assert torch.equal(own.isnan(), expected.isnan())
    assert torch.equal(own.nan_to_num(), expected.nan_to_num())


def special() -> Tensor:
    values = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -torch.nan, -1.0]
    return torch.tensor(values, device=DEVICE)[integers(len(values), 2, 9, 12)]


def test_what_is_not_finite_has_torchs_order() -> None:
    gates, bias = special(), torch.zeros(2, 12, device=DEVICE)
    assert torch.equal(choose_experts(gates, bias, 12, 1, TRITON), choose_experts(gates, bias, 12))


def test_many_blocks_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"_MAX_PAIRS": 4, "_CHOOSE_BLOCK": 16, "_COUNT_BLOCK": 16}.items():
        monkeypatch.setattr(routing, name, size)
    chosen = choose_experts(normal(2, 13, 5), normal(2, 5, seed=1), 2, 1, TRITON)
    assert_same_rows(group_rows(chosen, 5, TRITON), group_rows(chosen, 5))


def test_torch_agrees_with_what_the_ops_say_of_themselves() -> None:
    gates, bias = normal(2, 3, 4), normal(2, 4, seed=1)
    for ties in (None, torch.tensor([BY_INDEX, 3], dtype=torch.int32, device=DEVICE)):
        torch.library.opcheck(routing._choose, (gates, bias, 2, 1, ties))
    torch.library.opcheck(routing._sort, (choose_experts(gates, bias, 2), 4))
