"""Layer norm and RMS norm against torch's own, and the bits of a row beside other rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_near, error
from torch import Tensor
from triton_cases import BACKENDS, DTYPES, TRITON, normal

from hpxfer.kernels import norm
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.norm import EPS, added_norm, layer_norm


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


def added(
    backend: Backend | None, dtype: torch.dtype, sizes: tuple[int, int, int], *, y: bool, gain: bool, eps: float = 0.1
) -> dict[str, Tensor]:
    """Return what `added_norm` gives, or in float64 what torch's own operations give."""
    given = {"x": 2 * normal(*sizes, seed=1).to(dtype), "y": normal(*sizes, seed=2).to(dtype)}
    given["gain"] = 1 + 0.3 * normal(sizes[0], sizes[2], seed=3)
    leaves = {name: (one if backend else one.double()).requires_grad_() for name, one in given.items()}
    leaves = {name: one for name, one in leaves.items() if {"y": y, "gain": gain}.get(name, True)}
    if backend:
        args = leaves["x"], leaves.get("y"), leaves.get("gain"), None
        total, h = added_norm(*args, backend, kind="rmsnorm", eps=eps)
    else:
        total = leaves["x"] + leaves["y"] if y else leaves["x"]
        h = F.rms_norm(total, total.shape[-1:], eps=eps)
        h = h * leaves["gain"].unsqueeze(1) if gain else h
    dsum, dh = (normal(*sizes, seed=seed).to(total.dtype) for seed in (4, 5))
    grads = torch.autograd.grad((total, h), list(leaves.values()), (dsum, dh))
    return {"sum": total, "h": h, **{f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}}


@DTYPES
@BACKENDS
@pytest.mark.parametrize("sizes", [(2, 70, 24), (1, 300, 16), (2, 5, 1030)])
@pytest.mark.parametrize(("y", "gain"), [(True, True), (False, True), (True, False), (False, False)])
def test_the_sum_and_its_rms_norm(
    y: bool, gain: bool, sizes: tuple[int, int, int], backend: Backend, dtype: torch.dtype
) -> None:
    mine, own, exact = (added(one, dtype, sizes, y=y, gain=gain) for one in (backend, TORCH, None))
    assert mine.keys() == exact.keys()
    for name, tensor in mine.items():
        assert_near(tensor, own[name], exact[name], name=name)
    wrong = added(None, dtype, sizes, y=y, gain=gain, eps=0.3)
    assert error(mine["h"], wrong["h"]) > 0.01


def test_bits_of_the_kernel_do_not_depend_on_the_stack() -> None:
    x, y, dsum, dh = (normal(3, 300, 40, seed=seed) for seed in range(4))
    gain = normal(3, 40, seed=9)

    def found(trials: slice) -> list[Tensor]:
        leaves = [one[trials].clone().requires_grad_() for one in (x, y, gain)]
        outputs = added_norm(*leaves, None, TRITON, kind="rmsnorm")
        return [*outputs, *torch.autograd.grad(outputs, leaves, (dsum[trials], dh[trials]))]

    for one, together in zip(found(slice(1, 2)), found(slice(0, 3)), strict=True):
        assert torch.equal(one[0], together[1])


def test_the_ops_pass_opcheck() -> None:
    x, y, dsum, dh = (normal(2, 20, 24, seed=seed) for seed in range(4))
    gain, rstd = normal(2, 24, seed=9), normal(2, 20, seed=8).abs()
    for gains in (gain, None):
        torch.library.opcheck(norm._add_rms_norm, (x.clone().requires_grad_(), y, gains, 1e-5))
        torch.library.opcheck(norm._gradients, (dsum, dh, x, rstd, gains))
    torch.library.opcheck(norm._add_rms_norm, (x, None, gain, 1e-5))
