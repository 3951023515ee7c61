# mypy: ignore-errors
"""The Triton kernels of `router`.

Letters: BLOCK_T tokens, BLOCK_D features and BLOCK_E >= E experts of a program. All offsets of tokens are int64.
"""

import triton
import triton.language as tl

from hpxfer.kernels.routing_triton import ordered, store_best, tie_of


@triton.jit
def split_dot(a, b):
    """Return a @ b in float32, for b in float32. b is not rounded: three bfloat16 numbers hold its 24 bits.

    The sums of a block are added to others outside of tensor cores, which truncate where they add.
    """
    if a.dtype == tl.bfloat16:
        high = b.to(tl.bfloat16)
        rest = b - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        product = tl.dot(a, high, tl.dot(a, middle, tl.dot(a, low)))
    else:
        product = tl.dot(a.to(tl.float32), b, input_precision="ieee")
    return product


@triton.jit
def rank_dot(a, b, dtype: tl.constexpr):
    """Return a @ b in float32, for a sum that is rounded to `dtype`. Beside bfloat16, 16 bits of a and b count."""
    if dtype == tl.bfloat16:
        a_high, b_high = a.to(tl.bfloat16), b.to(tl.bfloat16)
        a_low = (a - a_high.to(tl.float32)).to(tl.bfloat16)
        b_low = (b - b_high.to(tl.float32)).to(tl.bfloat16)
        product = tl.dot(a_high, b_high, tl.dot(a_high, b_low, tl.dot(a_low, b_high)))
    else:
        product = tl.dot(a, b, input_precision="ieee")
    return product


@triton.jit(do_not_specialize=["num_noise", "num_ties"])
def route(
    x_ptr,
    y_ptr,
    w_ptr,
    noise_ptr,
    balance_ptr,
    scale_ptr,
    ties_ptr,
    sum_ptr,
    h_ptr,
    rstd_ptr,
    logits_ptr,
    chosen_ptr,
    num_tokens,
    size_d,
    num_experts,
    num_active,
    num_groups,
    num_noise,
    num_ties,
    eps,
    SCORE: tl.constexpr,
    IS_RMS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Program (block of tokens, trial) computes everything of its tokens. It reads x and y twice, once from a cache.

    Without noise, `num_noise` is 0 and not E; without ties, `num_ties` is 0 and not K. They are no constants, so that a
    trial runs the same code, and has the same bits, beside trials that have noise or ties and beside others.
    """
    trial = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    e = tl.arange(0, BLOCK_E)
    d = tl.arange(0, BLOCK_D)
    row = trial * num_tokens + token
    token_mask = (token < num_tokens)[:, None]
    dtype = h_ptr.dtype.element_ty
    at = row[:, None] * size_d + d[None, :]
    mean = tl.zeros([BLOCK_T], dtype=tl.float32)
    squares = tl.zeros([BLOCK_T], dtype=tl.float32)  # of the distances from the mean, 0 under RMS norm
    for begin in range(0, size_d, BLOCK_D):
        inside = (begin + d < size_d)[None, :]
        x = tl.load(x_ptr + at + begin, mask=token_mask & inside, other=0.0)
        y = tl.load(y_ptr + at + begin, mask=token_mask & inside, other=0.0)
        total = (x.to(tl.float32) + y.to(tl.float32)).to(dtype)
        tl.store(sum_ptr + at + begin, total, mask=token_mask & inside)
        total = total.to(tl.float32)
        if IS_RMS:
            squares += tl.sum(total * total, 1)  # what is outside was loaded as zeros
        else:
            count = tl.minimum(size_d - begin, BLOCK_D).to(tl.float32)
            share = count / (begin + count)
            mine = tl.sum(total, 1) / count
            far = tl.where(inside, total - mine[:, None], 0.0)
            apart = mine - mean
            mean += apart * share
            squares += tl.sum(far * far, 1) + apart * apart * (begin * share)
    rstd = tl.rsqrt(squares / size_d + eps)
    tl.store(rstd_ptr + row, rstd, mask=token < num_tokens)

    logits = tl.zeros([BLOCK_T, BLOCK_E], dtype=tl.float32)
    w_at = w_ptr + trial * size_d * num_experts + d[:, None] * num_experts + e[None, :]
    for begin in range(0, size_d, BLOCK_D):
        inside = (begin + d < size_d)[None, :]
        x = tl.load(x_ptr + at + begin, mask=token_mask & inside, other=0.0)
        y = tl.load(y_ptr + at + begin, mask=token_mask & inside, other=0.0)
        total = (x.to(tl.float32) + y.to(tl.float32)).to(dtype).to(tl.float32)
        h = ((total - mean[:, None]) * rstd[:, None]).to(dtype)
        tl.store(h_ptr + at + begin, h, mask=token_mask & inside)
        w_mask = (begin + d < size_d)[:, None] & (e < num_experts)[None, :]
        w = tl.load(w_at + begin * num_experts, mask=w_mask, other=0.0)
        logits += split_dot(h, w)
    logits += tl.load(noise_ptr + trial * num_experts + e, mask=e < num_noise, other=0.0)[None, :]
    logits_at = logits_ptr + row[:, None] * num_experts + e[None, :]
    tl.store(logits_at, logits, mask=token_mask & (e < num_experts)[None, :])

    if SCORE != "":
        if SCORE == "sigmoid":
            scores = 1.0 / (1.0 + tl.exp(-logits))
        else:
            logits = tl.where((e < num_experts)[None, :], logits, float("-inf"))
            powers = tl.exp(logits - tl.max(logits, 1)[:, None])
            scores = powers / tl.sum(powers, 1)[:, None]
            if SCORE == "scaled_softmax":
                scores = tl.load(scale_ptr + trial) * scores
        balance = tl.load(balance_ptr + trial * num_experts + e, mask=e < num_experts, other=0.0)
        tie = tie_of(ties_ptr + trial, num_ties)
        sizes = num_tokens, num_experts, num_active, num_groups
        store_best(ordered(scores + balance[None, :]), tie, token, chosen_ptr + row * num_active, *sizes, BLOCK_E)


@triton.jit
def stream_gradient(
    dsum_ptr,
    dh_ptr,
    dlogits_ptr,
    h_ptr,
    rstd_ptr,
    w_ptr,
    dx_ptr,
    num_tokens,
    size_d,
    num_experts,
    IS_RMS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Program (block of tokens, trial) writes dx of its tokens. It reads dh, h and w twice, once from a cache."""
    trial = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    e = tl.arange(0, BLOCK_E)
    d = tl.arange(0, BLOCK_D)
    row = trial * num_tokens + token
    token_mask = (token < num_tokens)[:, None]
    dtype = dx_ptr.dtype.element_ty
    at = row[:, None] * size_d + d[None, :]
    dlogits_at = dlogits_ptr + row[:, None] * num_experts + e[None, :]
    dlogits = tl.load(dlogits_at, mask=token_mask & (e < num_experts)[None, :], other=0.0)
    w_at = w_ptr + trial * size_d * num_experts + e[:, None] + d[None, :] * num_experts
    rstd = tl.load(rstd_ptr + row, mask=token < num_tokens, other=0.0)
    sum_g = tl.zeros([BLOCK_T], dtype=tl.float32)
    sum_gh = tl.zeros([BLOCK_T], dtype=tl.float32)
    for begin in range(0, size_d, BLOCK_D):
        inside = (begin + d < size_d)[None, :]
        w = tl.load(w_at + begin * num_experts, mask=inside & (e < num_experts)[:, None], other=0.0)
        dh = tl.load(dh_ptr + at + begin, mask=token_mask & inside, other=0.0)
        h = tl.load(h_ptr + at + begin, mask=token_mask & inside, other=0.0)
        g = dh.to(tl.float32) + rank_dot(dlogits, w, dtype)
        sum_g += tl.sum(g, 1)
        sum_gh += tl.sum(g * h.to(tl.float32), 1)
    mean_g = 0.0 * sum_g if IS_RMS else sum_g / size_d
    mean_gh = sum_gh / size_d
    for begin in range(0, size_d, BLOCK_D):
        inside = (begin + d < size_d)[None, :]
        w = tl.load(w_at + begin * num_experts, mask=inside & (e < num_experts)[:, None], other=0.0)
        dh = tl.load(dh_ptr + at + begin, mask=token_mask & inside, other=0.0)
        h = tl.load(h_ptr + at + begin, mask=token_mask & inside, other=0.0)
        g = dh.to(tl.float32) + rank_dot(dlogits, w, dtype)
        dnorm = rstd[:, None] * (g - mean_g[:, None] - h.to(tl.float32) * mean_gh[:, None])
        dsum = tl.load(dsum_ptr + at + begin, mask=token_mask & inside, other=0.0)
        tl.store(dx_ptr + at + begin, (dsum.to(tl.float32) + dnorm).to(dtype), mask=token_mask & inside)


@triton.jit
def weight_gradient(
    h_ptr,
    dlogits_ptr,
    dw_ptr,
    num_tokens,
    size_d,
    num_experts,
    num_pieces,
    num_blocks,
    ROWS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Program (piece of ROWS tokens and block of features, trial) writes dw[trial, piece] of its features."""
    trial = tl.program_id(1).to(tl.int64)
    piece = tl.program_id(0) // num_blocks
    d = (tl.program_id(0) % num_blocks) * BLOCK_D + tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_E)
    dw = tl.zeros([BLOCK_D, BLOCK_E], dtype=tl.float32)
    for begin in range(0, ROWS, BLOCK_T):
        token = piece * ROWS + begin + tl.arange(0, BLOCK_T)
        row = trial * num_tokens + token
        mask = token < num_tokens
        h = tl.load(h_ptr + row[:, None] * size_d + d[None, :], mask=mask[:, None] & (d < size_d)[None, :], other=0.0)
        dlogits_at = dlogits_ptr + row[:, None] * num_experts + e[None, :]
        dlogits = tl.load(dlogits_at, mask=mask[:, None] & (e < num_experts)[None, :], other=0.0)
        dw += split_dot(tl.trans(h), dlogits)
    at = dw_ptr + ((trial * num_pieces + piece) * size_d + d)[:, None] * num_experts + e[None, :]
    tl.store(at, dw, mask=(d < size_d)[:, None] & (e < num_experts)[None, :])
