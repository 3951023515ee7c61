"""The product with few outputs against the plain batched product."""

from __future__ import annotations

import pytest
import torch
from tolerances import assert_near
from torch import Tensor
from triton_cases import normal

from hpxfer.kernels.narrow import NARROW, narrow_product


def results(function: object, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in (x, w)]
    y = function(*leaves)  # type: ignore[operator]
    return (y, *torch.autograd.grad(y, leaves, normal(*y.shape, seed=2).to(y.dtype)))


@pytest.mark.parametrize("outputs", [1, 4, NARROW, NARROW + 4])
def test_values_and_gradients(outputs: int) -> None:
    x, w = normal(3, 5, 24), normal(3, 24, outputs, seed=1)
    mine = results(narrow_product, x, w)
    own, exact = results(torch.bmm, x, w), results(torch.bmm, x.double(), w.double())
    for name, *tensor in zip(("y", "dx", "dw"), mine, own, exact, strict=True):
        assert_near(*tensor, name=name)
    assert mine[0].is_contiguous()


@pytest.mark.parametrize("outputs", [4, 8])
def test_bits_of_a_trial_do_not_depend_on_its_stack(outputs: int) -> None:
    x, w, dy = normal(5, 64, 32), normal(5, 32, outputs, seed=1), normal(5, 64, outputs, seed=2)

    def run(trials: slice) -> tuple[Tensor, ...]:
        leaves = [tensor[trials].clone().requires_grad_() for tensor in (x, w)]
        y = narrow_product(*leaves)
        return (y, *torch.autograd.grad(y, leaves, dy[trials]))

    together = run(slice(0, 5))
    for trial in range(5):
        for got, whole in zip(run(slice(trial, trial + 1)), together, strict=True):
            assert torch.equal(got[0], whole[trial])
