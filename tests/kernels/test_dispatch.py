"""Tokens to expert rows and back: values and gradients against loops over tokens and slots."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hpxfer.kernels.dispatch import combine, dispatch
from hpxfer.kernels.routing import group_rows

NUM_EXPERTS = 5


def naive(x_MD: Tensor, factor_GD: Tensor, chosen_KTA: Tensor) -> Tensor:
    """Return [M, D]: every token times the factor of each of its experts, summed."""
    num_trials, tokens, _ = chosen_KTA.shape
    out = []
    for trial in range(num_trials):
        for token in range(tokens):
            x = x_MD[trial * tokens + token]
            y = torch.zeros_like(x)
            for expert in chosen_KTA[trial, token].tolist():
                y = y + x * factor_GD[trial * NUM_EXPERTS + expert]
            out.append(y)
    return torch.stack(out)


def stacked(x_MD: Tensor, factor_GD: Tensor, chosen_KTA: Tensor) -> Tensor:
    groups, num_active = group_rows(chosen_KTA, NUM_EXPERTS), chosen_KTA.shape[-1]
    rows = dispatch(x_MD, groups, num_active)
    group_of_row = torch.repeat_interleave(groups.load.flatten())
    return combine(rows * factor_GD[group_of_row], groups, num_active)


def chosen(case: str, num_active: int) -> Tensor:
    """Return [2 trials, 7 tokens, A]: all experts in use, or every token at the same ones and the others empty."""
    generator = torch.Generator().manual_seed(num_active)
    anywhere = torch.rand(2, 7, NUM_EXPERTS, generator=generator).argsort(-1)[..., :num_active]
    return {
        "all": anywhere,
        "first expert empty": 1 + torch.arange(num_active).expand(2, 7, num_active),
        "last expert first": NUM_EXPERTS - 1 - torch.arange(num_active).expand(2, 7, num_active),
    }[case]


@pytest.mark.parametrize("num_active", [1, 2, 3])
@pytest.mark.parametrize("case", ["all", "first expert empty", "last expert first"])
def test_values_and_gradients_equal_the_loop(case: str, num_active: int) -> None:
    chosen_KTA = chosen(case, num_active)
    generator = torch.Generator().manual_seed(1)
    # Small whole numbers: float64 sums are exact in any order, so equality is the tolerance.
    x, factor, weight = (
        torch.randint(-8, 9, (rows, 3), generator=generator).double() for rows in (14, 2 * NUM_EXPERTS, 14)
    )
    results = []
    for function in (stacked, naive):
        leaves = [x.clone().requires_grad_(), factor.clone().requires_grad_()]
        y = function(*leaves, chosen_KTA)
        results.append((y, *torch.autograd.grad((y * weight).sum(), leaves)))
    for mine, expected in zip(*results, strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("num_active", [1, 2, 3])
def test_combine_undoes_dispatch(num_active: int) -> None:
    x = torch.arange(42.0).view(14, 3)
    groups = group_rows(chosen("all", num_active), NUM_EXPERTS)
    copies = combine(dispatch(x, groups, num_active), groups, num_active)
    assert torch.equal(copies, sum(([x] * num_active)[1:], start=x))


def test_dispatch_and_combine_pass_gradcheck() -> None:
    groups = group_rows(chosen("all", 2), NUM_EXPERTS)
    x, rows = (torch.linspace(-1, 1, 2 * n, dtype=torch.float64).view(n, 2).requires_grad_() for n in (14, 28))
    assert torch.autograd.gradcheck(lambda x: dispatch(x, groups, 2), (x,))
    assert torch.autograd.gradcheck(lambda rows: combine(rows, groups, 2), (rows,))
