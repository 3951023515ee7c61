"""SGD without momentum: update = lr * g."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.train.optimizers.row import Numbers, Optimizer

if TYPE_CHECKING:
    from torch import Tensor


def _numbers(lr_RK: Tensor, betas_2K: Tensor, powers_2K: Tensor) -> dict[str, Tensor]:
    return {"lr": lr_RK}


def _update(g: Tensor, moments: tuple[Tensor, ...], at: Numbers, out: Tensor) -> None:
    import torch

    torch.mul(g, at["lr"], out=out)


def _kernel(p: Tensor, g: Tensor, moments: tuple[Tensor, ...], at: Numbers, keep_K: Tensor, alive_K: Tensor) -> None:
    """Take the step of `alive` trials in place. `keep` is what weight decay leaves of a parameter."""
    from hpxfer.kernels.adamw import sgd_

    sgd_(p, g, lr_K=at["lr"].squeeze(-1), keep_K=keep_K, alive_K=alive_K)


SGD = Optimizer(name="sgd", column="sgd", hps=(), num_moments=0, numbers=_numbers, update=_update, kernel=_kernel)
