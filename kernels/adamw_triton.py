# mypy: ignore-errors
"""The Triton kernels of `adamw`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def adamw_kernel(
    p_ptr,
    g_ptr,
    m_ptr,
    v_ptr,
    lr_ptr,
    keep_ptr,
    eps_ptr,
    beta1_ptr,
    beta2_ptr,
    scale_ptr,
    alive_ptr,
    stride_pk,
    stride_gk,
    stride_mk,
    stride_vk,
    num_elements,
    BLOCK_N: tl.constexpr,
):
    """One program per block of a trial's elements."""
    trial = tl.program_id(1).to(tl.int64)
    if tl.load(alive_ptr + trial) != 0:
        element = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        mask = element < num_elements
        p_at = p_ptr + trial * stride_pk + element
        m_at = m_ptr + trial * stride_mk + element
        v_at = v_ptr + trial * stride_vk + element
        g = tl.load(g_ptr + trial * stride_gk + element, mask=mask, other=0.0).to(tl.float32)
        m = tl.load(m_at, mask=mask, other=0.0) * tl.load(beta1_ptr + trial) + g
        v = tl.load(v_at, mask=mask, other=0.0) * tl.load(beta2_ptr + trial) + g * g
        below = tl.sqrt_rn(v) * tl.load(scale_ptr + trial) + tl.load(eps_ptr + trial)
        step = tl.div_rn(m, below) * tl.load(lr_ptr + trial)
        p = tl.load(p_at, mask=mask, other=0.0) * tl.load(keep_ptr + trial) - step
        tl.store(p_at, p, mask=mask)
        tl.store(m_at, m, mask=mask)
        tl.store(v_at, v, mask=mask)


@triton.jit
def sgd_kernel(p_ptr, g_ptr, lr_ptr, keep_ptr, alive_ptr, stride_pk, stride_gk, num_elements, BLOCK_N: tl.constexpr):
    """One program per block of a trial's elements."""
    trial = tl.program_id(1).to(tl.int64)
    if tl.load(alive_ptr + trial) != 0:
        element = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        mask = element < num_elements
        p_at = p_ptr + trial * stride_pk + element
        g = tl.load(g_ptr + trial * stride_gk + element, mask=mask, other=0.0).to(tl.float32)
        step = g * tl.load(lr_ptr + trial)
        p = tl.load(p_at, mask=mask, other=0.0) * tl.load(keep_ptr + trial) - step
        tl.store(p_at, p, mask=mask)


@triton.jit
def momentum_kernel(
    p_ptr,
    g_ptr,
    m_ptr,
    lr_ptr,
    keep_ptr,
    momentum_ptr,
    alive_ptr,
    stride_pk,
    stride_gk,
    stride_mk,
    num_elements,
    BLOCK_N: tl.constexpr,
):
    """One program per block of a trial's elements."""
    trial = tl.program_id(1).to(tl.int64)
    if tl.load(alive_ptr + trial) != 0:
        element = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        mask = element < num_elements
        p_at = p_ptr + trial * stride_pk + element
        m_at = m_ptr + trial * stride_mk + element
        g = tl.load(g_ptr + trial * stride_gk + element, mask=mask, other=0.0).to(tl.float32)
        m = tl.load(m_at, mask=mask, other=0.0) * tl.load(momentum_ptr + trial) + g
        step = m * tl.load(lr_ptr + trial)
        p = tl.load(p_at, mask=mask, other=0.0) * tl.load(keep_ptr + trial) - step
        tl.store(p_at, p, mask=mask)
        tl.store(m_at, m, mask=mask)
