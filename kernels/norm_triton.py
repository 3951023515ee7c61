# mypy: ignore-errors
"""The Triton kernels of `norm`: RMS norm with its gain, joined with the sum x + y before it.

Letters: BLOCK_T tokens and BLOCK_D features of a program. All offsets of tokens are int64.
"""

import triton
import triton.language as tl


@triton.jit
def add_rms_norm(
    x_ptr,
    y_ptr,
    gain_ptr,
    sum_ptr,
    h_ptr,
    rstd_ptr,
    num_tokens,
    size_d,
    eps,
    HAS_Y: tl.constexpr,
    HAS_GAIN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (block of tokens, trial) writes x + y, its norm and rstd. It reads x and y twice, once from a cache."""
    trial = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    row = trial * num_tokens + token
    token_mask = (token < num_tokens)[:, None]
    dtype = h_ptr.dtype.element_ty
    at = row[:, None] * size_d + d[None, :]
    squares = tl.zeros([BLOCK_T], dtype=tl.float32)
    for begin in range(0, size_d, BLOCK_D):
        mask = token_mask & (begin + d < size_d)[None, :]
        total = tl.load(x_ptr + at + begin, mask=mask, other=0.0).to(tl.float32)
        if HAS_Y:
            y = tl.load(y_ptr + at + begin, mask=mask, other=0.0)
            total = (total + y.to(tl.float32)).to(dtype)
            tl.store(sum_ptr + at + begin, total, mask=mask)
            total = total.to(tl.float32)
        squares += tl.sum(total * total, 1)
    rstd = tl.rsqrt(squares / size_d + eps)
    tl.store(rstd_ptr + row, rstd, mask=token < num_tokens)
    for begin in range(0, size_d, BLOCK_D):
        inside = begin + d < size_d
        mask = token_mask & inside[None, :]
        total = tl.load(x_ptr + at + begin, mask=mask, other=0.0).to(tl.float32)
        if HAS_Y:
            y = tl.load(y_ptr + at + begin, mask=mask, other=0.0)
            total = (total + y.to(tl.float32)).to(dtype).to(tl.float32)
        h = total * rstd[:, None]
        if HAS_GAIN:
            h *= tl.load(gain_ptr + trial * size_d + begin + d, mask=inside, other=0.0)[None, :]
        tl.store(h_ptr + at + begin, h.to(dtype), mask=mask)


@triton.jit
def rms_norm_gradient(
    dsum_ptr,
    dh_ptr,
    sum_ptr,
    rstd_ptr,
    gain_ptr,
    dx_ptr,
    num_tokens,
    size_d,
    HAS_Y: tl.constexpr,
    HAS_GAIN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (block of tokens, trial) writes dx of its tokens, which is dy too."""
    trial = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    row = trial * num_tokens + token
    token_mask = (token < num_tokens)[:, None]
    at = row[:, None] * size_d + d[None, :]
    rstd = tl.load(rstd_ptr + row, mask=token < num_tokens, other=0.0)
    products = tl.zeros([BLOCK_T], dtype=tl.float32)
    for begin in range(0, size_d, BLOCK_D):
        inside = begin + d < size_d
        mask = token_mask & inside[None, :]
        g = tl.load(dh_ptr + at + begin, mask=mask, other=0.0).to(tl.float32)
        if HAS_GAIN:
            g *= tl.load(gain_ptr + trial * size_d + begin + d, mask=inside, other=0.0)[None, :]
        total = tl.load(sum_ptr + at + begin, mask=mask, other=0.0).to(tl.float32)
        products += tl.sum(g * (total * rstd[:, None]), 1)
    mean = products / size_d
    for begin in range(0, size_d, BLOCK_D):
        inside = begin + d < size_d
        mask = token_mask & inside[None, :]
        g = tl.load(dh_ptr + at + begin, mask=mask, other=0.0).to(tl.float32)
        if HAS_GAIN:
            g *= tl.load(gain_ptr + trial * size_d + begin + d, mask=inside, other=0.0)[None, :]
        total = tl.load(sum_ptr + at + begin, mask=mask, other=0.0).to(tl.float32)
        dx = (g - total * rstd[:, None] * mean[:, None]) * rstd[:, None]
        if HAS_Y:
            dx += tl.load(dsum_ptr + at + begin, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + at + begin, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rms_gain_gradient(
    dh_ptr,
    sum_ptr,
    rstd_ptr,
    dgain_ptr,
    num_tokens,
    size_d,
    num_pieces,
    num_blocks,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Program (piece of ROWS tokens and block of features, trial) writes dgain[trial, piece] of its features."""
    trial = tl.program_id(1).to(tl.int64)
    piece = tl.program_id(0) // num_blocks
    d = (tl.program_id(0) % num_blocks) * BLOCK_D + tl.arange(0, BLOCK_D)
    dgain = tl.zeros([BLOCK_T, BLOCK_D], dtype=tl.float32)
    for begin in range(0, ROWS, BLOCK_T):
        token = piece * ROWS + begin + tl.arange(0, BLOCK_T)
        row = trial * num_tokens + token
        mask = (token < num_tokens)[:, None] & (d < size_d)[None, :]
        at = row[:, None] * size_d + d[None, :]
        dh = tl.load(dh_ptr + at, mask=mask, other=0.0).to(tl.float32)
        total = tl.load(sum_ptr + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row, mask=token < num_tokens, other=0.0)
        dgain += dh * (total * rstd[:, None])
    tl.store(dgain_ptr + (trial * num_pieces + piece) * size_d + d, tl.sum(dgain, 0), mask=d < size_d)
