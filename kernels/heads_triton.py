# mypy: ignore-errors
"""The Triton kernels of `heads`: the norm of queries or keys, its gain and bias, and their rotation.

A feature of a head and the one that it is rotated with are loaded one beside the other. The second load comes from a
cache. NORM is 0 without a norm, 1 for a norm over each head and 2 for one over all heads.

Letters: BLOCK_T tokens and BLOCK_P >= P features of a head of a program. All offsets of tokens are int64.
"""

import triton
import triton.language as tl


@triton.jit
def moments(at, mask, token_mask, num_heads, size_p, eps, IS_RMS: tl.constexpr, BLOCK_T: tl.constexpr):
    """Return the mean, 0 for RMS norm, and 1 / the root of the mean square of the distances from it, [BLOCK_T]."""
    count = num_heads * size_p
    mean = tl.zeros([BLOCK_T], dtype=tl.float32)
    squares = tl.zeros([BLOCK_T], dtype=tl.float32)
    if not IS_RMS:
        for head in range(num_heads):
            mean += tl.sum(tl.load(at + head * size_p, mask=mask, other=0.0).to(tl.float32), 1)
        mean = mean / count
    for head in range(num_heads):
        x = tl.load(at + head * size_p, mask=mask, other=0.0).to(tl.float32)
        far = tl.where(mask, x - mean[:, None], 0.0)
        squares += tl.sum(far * far, 1)
    return mean, tl.rsqrt(squares / count + eps)


@triton.jit
def with_gain(x, gain_at, bias_at, inside, HAS_GAIN: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Return x * gain + bias, for those that there are."""
    if HAS_GAIN:
        x = x * tl.load(gain_at, mask=inside, other=0.0)[None, :]
    if HAS_BIAS:
        x = x + tl.load(bias_at, mask=inside, other=0.0)[None, :]
    return x


@triton.jit
def angles(cos_ptr, sin_ptr, token, p, half, context, token_mask):
    """Return (cos, sin) [BLOCK_T, BLOCK_P] of every feature: 1 and 0 for those that are not rotated."""
    feature = tl.where(p < half, p, p - half)
    at = (token % context)[:, None] * half + feature[None, :]
    mask = token_mask & (p < 2 * half)[None, :]
    return tl.load(cos_ptr + at, mask=mask, other=1.0), tl.load(sin_ptr + at, mask=mask, other=0.0)


@triton.jit
def heads_forward(
    x_ptr,
    gain_ptr,
    bias_ptr,
    cos_ptr,
    sin_ptr,
    y_ptr,
    num_tokens,
    num_heads,
    size_p,
    half,
    context,
    row_stride,
    eps,
    NORM: tl.constexpr,
    IS_RMS: tl.constexpr,
    HAS_GAIN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_ROTATED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Program (block of tokens, trial) writes all heads of its tokens."""
    trial = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    p = tl.arange(0, BLOCK_P)
    row = trial * num_tokens + token
    token_mask = (token < num_tokens)[:, None]
    inside = p < size_p
    mask = token_mask & inside[None, :]
    start = x_ptr + row[:, None] * row_stride
    partner = tl.where(p < half, p + half, tl.where(p < 2 * half, p - half, p))
    sign = tl.where(p < half, -1.0, 1.0)
    if IS_ROTATED:
        cos, sin = angles(cos_ptr, sin_ptr, token, p, half, context, token_mask)
    mean = tl.zeros([BLOCK_T], dtype=tl.float32)
    rstd = tl.zeros([BLOCK_T], dtype=tl.float32) + 1.0
    if NORM == 2:
        mean, rstd = moments(start + p[None, :], mask, token_mask, num_heads, size_p, eps, IS_RMS, BLOCK_T)
    for head in range(num_heads):
        at = start + head * size_p
        if NORM == 1:
            mean, rstd = moments(at + p[None, :], mask, token_mask, 1, size_p, eps, IS_RMS, BLOCK_T)
        gain = trial * size_p
        if NORM == 2:
            gain = (trial * num_heads + head) * size_p
        x = tl.load(at + p[None, :], mask=mask, other=0.0).to(tl.float32)
        x = (x - mean[:, None]) * rstd[:, None]
        y = with_gain(x, gain_ptr + gain + p, bias_ptr + gain + p, inside, HAS_GAIN, HAS_BIAS)
        if IS_ROTATED:
            x = tl.load(at + partner[None, :], mask=mask, other=0.0).to(tl.float32)
            x = (x - mean[:, None]) * rstd[:, None]
            x = with_gain(x, gain_ptr + gain + partner, bias_ptr + gain + partner, inside, HAS_GAIN, HAS_BIAS)
            y = y * cos + x * sin * sign[None, :]
        y_at = y_ptr + (row[:, None] * num_heads + head) * size_p + p[None, :]
        tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def turned_back(dy_at, p, partner, sign, cos, sin, mask, IS_ROTATED: tl.constexpr):
    """Return the gradient of what was rotated, from that of what came out."""
    dn = tl.load(dy_at + p[None, :], mask=mask, other=0.0).to(tl.float32)
    if IS_ROTATED:
        other = tl.load(dy_at + partner[None, :], mask=mask, other=0.0).to(tl.float32)
        dn = dn * cos - other * sin * sign[None, :]
    return dn


@triton.jit
def heads_gradients(
    dy_ptr,
    x_ptr,
    gain_ptr,
    cos_ptr,
    sin_ptr,
    dx_ptr,
    dgain_ptr,
    dbias_ptr,
    num_tokens,
    num_heads,
    size_p,
    half,
    context,
    row_stride,
    eps,
    num_pieces,
    NORM: tl.constexpr,
    IS_RMS: tl.constexpr,
    HAS_GAIN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_ROTATED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Program (block of tokens, trial) writes dx of its tokens, and its share of the gradients of gain and bias."""
    trial = tl.program_id(1).to(tl.int64)
    piece = trial * num_pieces + tl.program_id(0)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    p = tl.arange(0, BLOCK_P)
    row = trial * num_tokens + token
    token_mask = (token < num_tokens)[:, None]
    inside = p < size_p
    mask = token_mask & inside[None, :]
    start = x_ptr + row[:, None] * row_stride
    dy_start = dy_ptr + row[:, None] * num_heads * size_p
    partner = tl.where(p < half, p + half, tl.where(p < 2 * half, p - half, p))
    sign = tl.where(p < half, -1.0, 1.0)
    cos = tl.zeros([BLOCK_T, BLOCK_P], dtype=tl.float32)
    sin = cos
    if IS_ROTATED:
        cos, sin = angles(cos_ptr, sin_ptr, token, p, half, context, token_mask)
    mean = tl.zeros([BLOCK_T], dtype=tl.float32)
    rstd = tl.zeros([BLOCK_T], dtype=tl.float32) + 1.0
    mean_g = tl.zeros([BLOCK_T], dtype=tl.float32)
    mean_gx = tl.zeros([BLOCK_T], dtype=tl.float32)
    if NORM == 2:
        mean, rstd = moments(start + p[None, :], mask, token_mask, num_heads, size_p, eps, IS_RMS, BLOCK_T)
        for head in range(num_heads):
            x = tl.load(start + head * size_p + p[None, :], mask=mask, other=0.0).to(tl.float32)
            x = (x - mean[:, None]) * rstd[:, None]
            g = turned_back(dy_start + head * size_p, p, partner, sign, cos, sin, mask, IS_ROTATED)
            if HAS_GAIN:
                gain_at = gain_ptr + (trial * num_heads + head) * size_p + p
                g = g * tl.load(gain_at, mask=inside, other=0.0)[None, :]
            mean_g += tl.sum(g, 1)
            mean_gx += tl.sum(g * tl.where(mask, x, 0.0), 1)
        mean_g = mean_g / (num_heads * size_p)
        mean_gx = mean_gx / (num_heads * size_p)
    dgain = tl.zeros([BLOCK_P], dtype=tl.float32)
    dbias = tl.zeros([BLOCK_P], dtype=tl.float32)
    for head in range(num_heads):
        at = start + head * size_p + p[None, :]
        dn = turned_back(dy_start + head * size_p, p, partner, sign, cos, sin, mask, IS_ROTATED)
        if NORM == 0:
            dx = dn
        else:
            if NORM == 1:
                mean, rstd = moments(at, mask, token_mask, 1, size_p, eps, IS_RMS, BLOCK_T)
            x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
            x = tl.where(mask, (x - mean[:, None]) * rstd[:, None], 0.0)
            g = dn
            if HAS_GAIN:
                gain = trial * size_p
                if NORM == 2:
                    gain = (trial * num_heads + head) * size_p
                g = g * tl.load(gain_ptr + gain + p, mask=inside, other=0.0)[None, :]
            if NORM == 1:
                mean_g = tl.sum(g, 1) / size_p
                mean_gx = tl.sum(g * x, 1) / size_p
            dx = g - x * mean_gx[:, None]
            if not IS_RMS:
                dx = dx - mean_g[:, None]
            dx = dx * rstd[:, None]
            if NORM == 2:
                part = (piece * num_heads + head) * size_p + p
                if HAS_GAIN:
                    tl.store(dgain_ptr + part, tl.sum(dn * x, 0), mask=inside)
                if HAS_BIAS:
                    tl.store(dbias_ptr + part, tl.sum(dn, 0), mask=inside)
            else:
                dgain += tl.sum(dn * x, 0)
                dbias += tl.sum(dn, 0)
        dx_at = dx_ptr + (row[:, None] * num_heads + head) * size_p + p[None, :]
        tl.store(dx_at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if NORM == 1:
        if HAS_GAIN:
            tl.store(dgain_ptr + piece * size_p + p, dgain, mask=inside)
        if HAS_BIAS:
            tl.store(dbias_ptr + piece * size_p + p, dbias, mask=inside)
