"""AdamW: the moments are kept without their factors 1 - beta, which saves two passes over the parameters.

m <- beta1 m + g          v <- beta2 v + g^2
update = lr (1 - beta1)/(1 - beta1^t) * m / (sqrt(v) * sqrt((1 - beta2)/(1 - beta2^t)) + eps)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.train.optimizers.row import Numbers, Optimizer

if TYPE_CHECKING:
    from torch import Tensor


def _numbers(lr_RK: Tensor, betas_2K: Tensor, powers_2K: Tensor) -> dict[str, Tensor]:
    beta1_K, beta2_K = betas_2K
    power1_K, power2_K = powers_2K
    return {
        "lr": lr_RK * (1 - beta1_K) / (1 - power1_K),
        "scale": ((1 - beta2_K) / (1 - power2_K)).sqrt(),
    }


def _update(g: Tensor, moments: tuple[Tensor, ...], at: Numbers, out: Tensor) -> None:
    import torch

    m, v = moments
    m.mul_(at["beta1"]).add_(g)
    torch.mul(g, g, out=out)
    v.mul_(at["beta2"]).add_(out)
    torch.sqrt(v, out=out).mul_(at["scale"]).add_(at["eps"])
    torch.div(m, out, out=out).mul_(at["lr"])


def _below_eps(moments: tuple[Tensor, ...], at: Numbers) -> Tensor:
    return moments[1].sqrt().mul_(at["scale"]) < at["eps"]


def _kernel(p: Tensor, g: Tensor, moments: tuple[Tensor, ...], at: Numbers, keep_K: Tensor, alive_K: Tensor) -> None:
    """Take the step of `alive` trials in place. `keep` is what weight decay leaves of a parameter."""
    from hpxfer.kernels.adamw import adamw_

    adamw_(
        p,
        g,
        *moments,
        lr_K=at["lr"].squeeze(-1),
        keep_K=keep_K,
        eps_K=at["eps"].squeeze(-1),
        beta1_K=at["beta1"].squeeze(-1),
        beta2_K=at["beta2"].squeeze(-1),
        scale_K=at["scale"].squeeze(-1),
        alive_K=alive_K,
    )


ADAMW = Optimizer(
    name="adamw",
    column="adam",
    hps=("eps", "beta1", "beta2"),
    num_moments=2,
    numbers=_numbers,
    update=_update,
    kernel=_kernel,
    below_eps=_below_eps,
)
