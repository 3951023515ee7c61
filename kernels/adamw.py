"""AdamW and SGD of K trials in one pass each, as Triton kernels. Each trial has its own numbers.

    m <- beta1 m + g          v <- beta2 v + g^2
    p <- keep p - lr * m / (sqrt(v) * scale + eps)                                       (AdamW)
    p <- keep p - lr * g                                                                 (SGD)
    m <- momentum m + g          p <- keep p - lr * m                                    (SGD with momentum)

    lr    AdamW: peak lr * factor * (1 - beta1) / (1 - beta1^t);  SGD: peak lr * factor
    keep  1 - peak lr * factor * weight decay              scale  sqrt((1 - beta2) / (1 - beta2^t))

These are the rules of `hpxfer.train.optimizers`, whose `update` is their code in torch. Here every operation is rounded
separately and exactly, in the order written; none are fused. A trial that is not alive keeps the bits of p, m and v,
whatever its gradient holds.

Letters: K trials, N elements of a tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpxfer.kernels.backend import launch

GRADIENT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# 8 elements per thread of 4 warps, which makes whole 16-byte accesses (derived, not measured).
BLOCK_N = 1024
_LAUNCH = {"BLOCK_N": BLOCK_N, "num_warps": 4, "enable_fp_fusion": False}


def adamw_(
    p_KN: Tensor,
    g_KN: Tensor,
    m_KN: Tensor,
    v_KN: Tensor,
    *,
    lr_K: Tensor,
    keep_K: Tensor,
    eps_K: Tensor,
    beta1_K: Tensor,
    beta2_K: Tensor,
    scale_K: Tensor,
    alive_K: Tensor,
) -> None:
    """Take a step of AdamW in place on p, m and v, all float32. The gradient may be bfloat16 or float16.

    Each trial's elements are contiguous. Trials may lie any distance apart. `alive_K` is bool, the others are float32.
    """
    columns = (lr_K, keep_K, eps_K, beta1_K, beta2_K, scale_K)
    _check((p_KN, m_KN, v_KN), g_KN, columns, alive_K)
    _adamw(p_KN, g_KN, m_KN, v_KN, *columns, alive_K)


def sgd_(p_KN: Tensor, g_KN: Tensor, *, lr_K: Tensor, keep_K: Tensor, alive_K: Tensor) -> None:
    """Take a step of SGD with decoupled weight decay in place on p. The layouts are those of `adamw_`."""
    _check((p_KN,), g_KN, (lr_K, keep_K), alive_K)
    _sgd(p_KN, g_KN, lr_K, keep_K, alive_K)


def momentum_(
    p_KN: Tensor, g_KN: Tensor, m_KN: Tensor, *, lr_K: Tensor, keep_K: Tensor, momentum_K: Tensor, alive_K: Tensor
) -> None:
    """Take a step of SGD with momentum and decoupled weight decay in place on p and m. See `adamw_` for the layouts."""
    _check((p_KN, m_KN), g_KN, (lr_K, keep_K, momentum_K), alive_K)
    _momentum(p_KN, g_KN, m_KN, lr_K, keep_K, momentum_K, alive_K)


def _check(changed: tuple[Tensor, ...], g_KN: Tensor, columns: tuple[Tensor, ...], alive_K: Tensor) -> None:
    size = changed[0].shape
    assert len(size) == 2, f"parameters must be [K, N], got {tuple(size)}"
    assert g_KN.dtype in GRADIENT_DTYPES, f"the gradient must be one of {GRADIENT_DTYPES}, got {g_KN.dtype}"
    for tensor in changed:
        assert tensor.dtype == torch.float32, f"parameters and moments must be float32, got {tensor.dtype}"
    for tensor in (*changed, g_KN):
        shapes = f"{tensor.shape} and {size}"
        assert tensor.shape == size, f"parameters, gradient and moments must have the same shape, got {shapes}"
        contiguous = tensor.stride(1) == 1 or size[1] == 1
        assert contiguous, f"a trial's elements must be contiguous, got strides {tensor.stride()}"
    for column_K in columns:
        assert column_K.dtype == torch.float32, f"a trial's numbers must be float32, got {column_K.dtype}"
    assert alive_K.dtype == torch.bool, f"alive must be bool, got {alive_K.dtype}"
    for column_K in (*columns, alive_K):
        shape = tuple(column_K.shape)
        assert shape == size[:1], f"there must be one number per trial, got {shape} for {size[0]} trials"
        assert column_K.is_contiguous(), f"a trial's numbers must be contiguous, got stride {column_K.stride()}"


@torch.library.custom_op("hpxfer::adamw_", mutates_args=("p_KN", "m_KN", "v_KN"))
def _adamw(
    p_KN: Tensor,
    g_KN: Tensor,
    m_KN: Tensor,
    v_KN: Tensor,
    lr_K: Tensor,
    keep_K: Tensor,
    eps_K: Tensor,
    beta1_K: Tensor,
    beta2_K: Tensor,
    scale_K: Tensor,
    alive_K: Tensor,
) -> None:
    from hpxfer.kernels.adamw_triton import adamw_kernel

    columns = (lr_K, keep_K, eps_K, beta1_K, beta2_K, scale_K, alive_K)
    tensors = (p_KN, g_KN, m_KN, v_KN)
    strides = (tensor.stride(0) for tensor in tensors)
    launch(adamw_kernel, _grid(p_KN), *tensors, *columns, *strides, p_KN.shape[1], **_LAUNCH)


@torch.library.custom_op("hpxfer::sgd_", mutates_args=("p_KN",))
def _sgd(p_KN: Tensor, g_KN: Tensor, lr_K: Tensor, keep_K: Tensor, alive_K: Tensor) -> None:
    from hpxfer.kernels.adamw_triton import sgd_kernel

    strides = (p_KN.stride(0), g_KN.stride(0))
    launch(sgd_kernel, _grid(p_KN), p_KN, g_KN, lr_K, keep_K, alive_K, *strides, p_KN.shape[1], **_LAUNCH)


@torch.library.custom_op("hpxfer::momentum_", mutates_args=("p_KN", "m_KN"))
def _momentum(
    p_KN: Tensor, g_KN: Tensor, m_KN: Tensor, lr_K: Tensor, keep_K: Tensor, momentum_K: Tensor, alive_K: Tensor
) -> None:
    from hpxfer.kernels.adamw_triton import momentum_kernel

    tensors, columns = (p_KN, g_KN, m_KN), (lr_K, keep_K, momentum_K, alive_K)
    strides = (tensor.stride(0) for tensor in tensors)
    launch(momentum_kernel, _grid(p_KN), *tensors, *columns, *strides, p_KN.shape[1], **_LAUNCH)


def _grid(p_KN: Tensor) -> tuple[int, int]:
    """Return (blocks of elements, trials). The long axis is first, because the others are bounded by 65535."""
    num_trials, num_elements = p_KN.shape
    return -(-num_elements // BLOCK_N), num_trials
