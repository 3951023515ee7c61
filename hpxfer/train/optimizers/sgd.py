"""SGD with heavy-ball momentum, as torch.optim.SGD without dampening: m <- momentum m + g, update = lr m.

Without momentum the update is lr * g. A stack in which no trial has momentum keeps no moments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.train.optimizers.row import Numbers, Optimizer

if TYPE_CHECKING:
    from torch import Tensor


def _numbers(lr_RK: Tensor, betas_2K: Tensor, powers_2K: Tensor) -> dict[str, Tensor]:
    return {"lr": lr_RK}


def _update(g: Tensor, moments: tuple[Tensor, ...], at: Numbers, out: Tensor) -> None:
    import torch

    for m in moments:  # one of them, or none
        g = m.mul_(at["momentum"]).add_(g)
    torch.mul(g, at["lr"], out=out)


def _kernel(p: Tensor, g: Tensor, moments: tuple[Tensor, ...], at: Numbers, keep_K: Tensor, alive_K: Tensor) -> None:
    """Take the step of `alive` trials in place. `keep` is what weight decay leaves of a parameter."""
    from hpxfer.kernels.adamw import momentum_, sgd_

    lr_K = at["lr"].squeeze(-1)
    if moments:
        momentum_(p, g, *moments, lr_K=lr_K, keep_K=keep_K, momentum_K=at["momentum"].squeeze(-1), alive_K=alive_K)
    else:
        sgd_(p, g, lr_K=lr_K, keep_K=keep_K, alive_K=alive_K)


SGD = Optimizer(
    name="sgd",
    column="sgd",
    hps=("momentum",),
    num_moments=0,
    momentum_moments=1,
    numbers=_numbers,
    update=_update,
    kernel=_kernel,
)
