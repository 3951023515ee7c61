"""AdamW and SGD of several trials against torch's optimizers and a plain step, and the bits of dead trials."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import assert_near
from torch import Tensor
from triton_cases import DEVICE, DTYPES, normal

from hpxfer.kernels import adamw
from hpxfer.kernels.adamw import adamw_, momentum_, sgd_

NAMES = ("lr", "keep", "eps", "beta1", "beta2", "scale")
HPS = ({"lr": 0.1, "eps": 1e-8, "weight_decay": 0.1, "betas": (0.9, 0.95)},) * 2 + (
    {"lr": 0.003, "eps": 1e-3, "weight_decay": 0.0, "betas": (0.0, 0.0)},
)


def columns(hps: tuple[dict[str, Any], ...], t: int) -> dict[str, Tensor]:
    """Return the numbers of step t, computed on the host in double precision."""
    rows = []
    for tensor in hps:
        beta1, beta2 = tensor["betas"]
        lr = tensor["lr"] * (1 - beta1) / (1 - beta1**t)
        keep = 1 - tensor["lr"] * tensor["weight_decay"]
        rows.append((lr, keep, tensor["eps"], beta1, beta2, ((1 - beta2) / (1 - beta2**t)) ** 0.5))
    return {
        f"{name}_K": torch.tensor(column, dtype=torch.float64).float().to(DEVICE)
        for name, column in zip(NAMES, zip(*rows, strict=True), strict=True)
    }


def everyone(num_trials: int) -> Tensor:
    return torch.ones(num_trials, dtype=torch.bool, device=DEVICE)


def start(num_trials: int, num_elements: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return p, m and v in the middle of a training."""
    p, m, v = (normal(num_trials, num_elements, seed=seed) for seed in (1, 2, 3))
    return p, m, v.square()


def by_torch(hps: dict[str, Any], p: Tensor, gradients: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return one trial's parameters after steps of torch's AdamW."""
    leaf = p.to(dtype, copy=True).requires_grad_()
    made = torch.optim.AdamW([leaf], foreach=False, **hps)
    for gradient in gradients:
        leaf.grad = gradient.to(dtype)
        made.step()
    return leaf.detach()


def step(name: str, parts: tuple[Tensor, ...], gradient: Tensor, alive: Tensor) -> None:
    """Take a step of either optimizer with HPS."""
    some = columns(HPS, 3)
    shared = {"lr_K": some["lr_K"], "keep_K": some["keep_K"], "alive_K": alive}
    if name == "adamw":
        adamw_(parts[0], gradient, *parts[1:], **some, alive_K=alive)
    elif name == "momentum":
        momentum_(parts[0], gradient, parts[1], momentum_K=some["beta1_K"], **shared)
    else:
        sgd_(parts[0], gradient, **shared)


@given(
    lr=st.floats(1e-6, 1.0),
    eps=st.floats(1e-12, 1.0),
    weight_decay=st.floats(0.0, 0.9),
    betas=st.tuples(st.floats(0.0, 0.99), st.floats(0.0, 0.9999)),
    size=st.sampled_from([1e-4, 1.0, 1e3]),
)
def test_steps_are_torchs(lr: float, eps: float, weight_decay: float, betas: tuple[float, float], size: float) -> None:
    hps = ({"lr": lr, "eps": eps, "weight_decay": weight_decay, "betas": betas}, HPS[0])
    before = normal(2, 19)
    gradients = [size * normal(2, 19, seed=10 + t) for t in range(3)]
    p, m, v = before.clone(), torch.zeros_like(before), torch.zeros_like(before)
    for t, gradient in enumerate(gradients, 1):
        adamw_(p, gradient, m, v, **columns(hps, t), alive_K=everyone(2))
    for trial in range(2):
        mine = [gradient[trial] for gradient in gradients]
        own, exact = (by_torch(hps[trial], before[trial], mine, dtype) for dtype in (torch.float32, torch.float64))
        assert_near(p[trial], own, exact)


def exactly(p: Tensor, gradient: Tensor, m: Tensor, v: Tensor, some: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Return (p, m, v) after a step on the CPU in which every operation is exactly rounded."""
    p, g, m, v = (tensor.cpu().float() for tensor in (p, gradient, m, v))
    column = {name: tensor.cpu().unsqueeze(1) for name, tensor in some.items()}
    m = m * column["beta1_K"] + g
    v = v * column["beta2_K"] + g * g
    # Through float64: torch's float32 sqrt may be one rounding off.
    root = v.double().sqrt().float()
    step = m / (root * column["scale_K"] + column["eps_K"]) * column["lr_K"]
    return p * column["keep_K"] - step, m, v


@pytest.mark.parametrize("num_elements", [1, 100, 2500])
@DTYPES
def test_triton_rounds_every_operation_exactly(num_elements: int, dtype: torch.dtype) -> None:
    gradient, some = normal(3, num_elements, seed=4, dtype=dtype), columns(HPS, 2)
    parts = start(3, num_elements)
    expected = exactly(parts[0], gradient, *parts[1:], some)
    adamw_(parts[0], gradient, *parts[1:], **some, alive_K=everyone(3))
    for mine, exact in zip(parts, expected, strict=True):
        assert torch.equal(mine.cpu(), exact)


@DTYPES
def test_sgd_rounds_every_operation_exactly(dtype: torch.dtype) -> None:
    p, gradient, some = normal(3, 100), normal(3, 100, seed=4, dtype=dtype), columns(HPS, 3)
    lr, keep = (some[name].cpu().unsqueeze(1) for name in ("lr_K", "keep_K"))
    expected = p.cpu() * keep - gradient.cpu().float() * lr
    step("sgd", (p,), gradient, everyone(3))
    assert torch.equal(p.cpu(), expected)


@DTYPES
def test_momentum_rounds_every_operation_exactly(dtype: torch.dtype) -> None:
    gradient, some, (p, m, _) = normal(3, 100, seed=4, dtype=dtype), columns(HPS, 3), start(3, 100)
    lr, keep, momentum = (some[name].cpu().unsqueeze(1) for name in ("lr_K", "keep_K", "beta1_K"))
    moved = m.cpu() * momentum + gradient.cpu().float()
    expected = p.cpu() * keep - moved * lr
    step("momentum", (p, m), gradient, everyone(3))
    assert torch.equal(p.cpu(), expected)
    assert torch.equal(m.cpu(), moved)


def test_without_momentum_the_step_has_the_bits_of_sgd() -> None:
    some, zero = columns(HPS, 3), torch.zeros(3, device=DEVICE)
    shared = {"lr_K": some["lr_K"], "keep_K": some["keep_K"], "alive_K": everyone(3)}
    p, m, _ = start(3, 50)
    other = p.clone()
    for seed in (4, 5):
        sgd_(p, normal(3, 50, seed=seed), **shared)
        momentum_(other, normal(3, 50, seed=seed), m, momentum_K=zero, **shared)
    assert torch.equal(p, other)


def test_sgd_is_torchs_with_decoupled_decay() -> None:
    before, gradient = normal(2, 33), normal(2, 33, seed=1)
    lr, weight_decay = torch.tensor([0.1, 0.7], device=DEVICE), torch.tensor([0.0, 0.5], device=DEVICE)
    p = before.clone()
    sgd_(p, gradient, lr_K=lr, keep_K=1 - lr * weight_decay, alive_K=everyone(2))
    for trial in range(2):
        results = []
        for dtype in (torch.float32, torch.float64):
            leaf = (
                before[trial].to(dtype) * (1 - lr[trial].to(dtype) * weight_decay[trial].to(dtype))
            ).requires_grad_()
            leaf.grad = gradient[trial].to(dtype)
            torch.optim.SGD([leaf], lr=float(lr[trial]), foreach=False).step()
            results.append(leaf.detach())
        assert_near(p[trial], *results)


@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum"])
@pytest.mark.parametrize("poison", [0.5, torch.nan, torch.inf, -0.0])
def test_a_dead_trial_keeps_its_bits(poison: float, name: str) -> None:
    parts, before = start(3, 40), start(3, 40)
    free = start(3, 40)
    for part in (parts[0], before[0]):
        part[1, :4] = torch.tensor([torch.nan, -0.0, torch.inf, 1e-42], device=DEVICE)
    gradient = normal(3, 40, seed=4)
    step(name, free, gradient, everyone(3))
    gradient[1] = poison
    step(name, parts, gradient, torch.tensor([True, False, True], device=DEVICE))
    for mine, old, other in zip(parts, before, free, strict=True):
        assert torch.equal(mine[1].view(torch.int32), old[1].view(torch.int32))
        assert torch.equal(mine[[0, 2]], other[[0, 2]])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, of which the interpreter is made
@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum"])
def test_a_broken_gradient_reaches_no_other_trial(name: str) -> None:
    parts, free = start(3, 40), start(3, 40)
    gradient = normal(3, 40, seed=4)
    step(name, free, gradient, everyone(3))
    gradient[1, 7] = torch.nan
    step(name, parts, gradient, everyone(3))
    assert parts[0][1].isnan().sum() == 1
    for mine, other in zip(parts, free, strict=True):
        assert torch.equal(mine[[0, 2]], other[[0, 2]])


@pytest.mark.parametrize("name", ["adamw", "sgd", "momentum"])
def test_trials_may_lie_apart(name: str) -> None:
    close = start(3, 40)
    apart = tuple(torch.full((3, 64), 7.0, device=DEVICE) for _ in close)
    for far, near in zip(apart, close, strict=True):
        far[:, 3:43] = near
    gradient = normal(3, 50, seed=4)[:, 5:45]
    step(name, close, gradient.contiguous(), everyone(3))
    step(name, tuple(tensor[:, 3:43] for tensor in apart), gradient, everyone(3))
    for far, near in zip(apart, close, strict=True):
        assert torch.equal(far[:, 3:43], near)
        assert torch.equal(far[:, :3], torch.full_like(far[:, :3], 7.0))
        assert torch.equal(far[:, 43:], torch.full_like(far[:, 43:], 7.0))


@DTYPES
def test_the_ops_pass_opcheck(dtype: torch.dtype) -> None:
    some, (p, m, v), gradient = columns(HPS, 2), start(3, 20), normal(3, 20, dtype=dtype)
    torch.library.opcheck(adamw._adamw, (p, gradient, m, v, *some.values(), everyone(3)))
    torch.library.opcheck(adamw._sgd, (p, gradient, some["lr_K"], some["keep_K"], everyone(3)))
    rates = (some["lr_K"], some["keep_K"], some["beta1_K"])
    torch.library.opcheck(adamw._momentum, (p, gradient, m, *rates, everyone(3)))


def test_what_does_not_fit_is_refused() -> None:
    p, good = torch.zeros(2, 6), {"lr_K": torch.ones(2), "keep_K": torch.ones(2), "alive_K": torch.ones(2).bool()}
    for gradient, change in (
        (torch.zeros(2, 5), {}),
        (torch.zeros(6, 2).T, {}),
        (torch.zeros(2, 6, dtype=torch.float64), {}),
        (p, {"lr_K": torch.ones(3)}),
        (p, {"lr_K": torch.ones(2).double()}),
        (p, {"alive_K": torch.ones(2)}),
        (p, {"keep_K": torch.ones(1).expand(2)}),
    ):
        with pytest.raises(AssertionError, match="got"):
            sgd_(p, gradient, **(good | change))
    with pytest.raises(AssertionError, match="float32, got"):
        sgd_(p.half(), p, **good)
    with pytest.raises(AssertionError, match=r"\[K, N\], got"):
        sgd_(torch.zeros(6), torch.zeros(6), **good)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@DTYPES
def test_a_large_tensor_of_uneven_size(dtype: torch.dtype) -> None:
    gradient, some, parts = normal(3, 1_000_003, seed=4, dtype=dtype), columns(HPS, 3), start(3, 1_000_003)
    expected = exactly(parts[0], gradient, *parts[1:], some)
    step("adamw", parts, gradient, everyone(3))
    for mine, exact in zip(parts, expected, strict=True):
        assert torch.equal(mine.cpu(), exact)
