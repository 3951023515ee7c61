"""Layer norm against torch's own, and the bits of a row beside other rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_near
from torch import Tensor
from triton_cases import normal

from hpxfer.kernels.norm import EPS, layer_norm


def results(function: object, x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    y = function(leaf)  # type: ignore[operator]
    return y, torch.autograd.grad(y, leaf, normal(*x.shape, seed=1).to(y.dtype))[0]


def torchs(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=EPS)


@pytest.mark.parametrize("width", [4, 24, 128])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e-4, 0.0), (1e4, 0.0), (1.0, 30.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradient(width: int, scale: float, shift: float, dtype: torch.dtype) -> None:
    x = (scale * normal(2, 5, width) + shift).to(dtype)
    mine, own, exact = results(layer_norm, x), results(torchs, x), results(torchs, x.double())
    for name, *tensor in zip(("y", "dx"), mine, own, exact, strict=True):
        assert_near(*tensor, name=name)


def test_gradcheck() -> None:
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).square().view(3, 8).requires_grad_()
    assert torch.autograd.gradcheck(layer_norm, (x,))


def test_a_row_that_is_not_finite_stays_alone() -> None:
    x = normal(3, 2, 16)
    x[1, 0, 0] = torch.inf
    y, dx = results(layer_norm, x)
    assert not y[1, 0].isfinite().any()
    for tensor in (y, dx):
        tensor[1, 0] = 0.0
        assert tensor.isfinite().all()


@pytest.mark.parametrize("width", [16, 32, 256])
def test_bits_of_a_trial_do_not_depend_on_its_stack(width: int) -> None:
    x = normal(5, 32, width)
    y, together = results(layer_norm, x)
    for trial in range(5):
        leaf = x[trial : trial + 1].clone().requires_grad_()
        alone = layer_norm(leaf)
        dy = normal(*x.shape, seed=1)[trial : trial + 1]
        assert torch.equal(alone[0], y[trial])
        assert torch.equal(torch.autograd.grad(alone, leaf, dy)[0][0], together[trial])
