# mypy: ignore-errors
"""Routing in Triton: the choice of the experts, and a counting sort with prefix sums.

A pair is a (token, slot). Pair p of trial k has expert chosen[k, p]. Pairs are cut into blocks:

    count[k, b, e]    pairs of block b with expert e
    first[k, b, e]    = k*P + pairs of lower experts + pairs of e in the blocks before                P pairs per trial
    row of a pair     = first of its block and expert + pairs of that expert before it in the block

All numbers are integers, and there are no atomics. The order is that of a stable sort.
"""

import triton
import triton.language as tl


@triton.jit
def ordered(x):
    """Return int32 in the order of float32 `x`. As in torch.sort, -0 equals 0 and NaN is the largest."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(x != x, 0x7FFFFFFF, key)


@triton.jit
def mixed(x):
    """Return the hash `lowbias32` of int32 `x`, as `_mixed` of routing.py does."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit(do_not_specialize=["num_ties"])
def choose(
    gates_ptr,
    bias_ptr,
    ties_ptr,
    chosen_ptr,
    num_tokens,
    num_experts,
    num_active,
    num_groups,
    num_ties,
    BLOCK_T: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Program (block of tokens, trial) takes the best expert that is left, A times."""
    trial = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    e = tl.arange(0, BLOCK_E)
    row = trial * num_tokens + token
    mask = (token < num_tokens)[:, None] & (e < num_experts)[None, :]
    gates = tl.load(gates_ptr + row[:, None] * num_experts + e[None, :], mask=mask, other=0.0)
    bias = tl.load(bias_ptr + trial * num_experts + e, mask=e < num_experts, other=0.0)
    tie = tie_of(ties_ptr + trial, num_ties)
    sizes = num_tokens, num_experts, num_active, num_groups
    store_best(ordered(gates + bias[None, :]), tie, token, chosen_ptr + row * num_active, *sizes, BLOCK_E)


@triton.jit
def tie_of(ties_at, num_ties):
    """Return the key of a trial, or -1 if no trial of the stack breaks ties at random."""
    tie = tl.full([], -1, tl.int32)
    if num_ties > 0:
        tie = tl.load(ties_at)
    return tie


@triton.jit
def store_best(key, tie, token, chosen_at, num_tokens, num_experts, num_active, num_groups, BLOCK_E: tl.constexpr):
    """Store the experts of largest `key` [T, BLOCK_E] of every token at `chosen_at` [T].

    Ties go to the lowest index, or where the trial's `tie` is a key, which is not negative, to the lowest hash.
    """
    e = tl.arange(0, BLOCK_E)
    taken = -0x7FFFFFFF - 1  # below every key of `ordered`
    group = (e // (num_experts // num_groups))[None, :]
    key = tl.where((e < num_experts)[None, :], key, taken)
    each = num_active // num_groups
    for a in range(num_active):
        left = tl.where(group == a // each, key, taken)
        tied = left == tl.max(left, axis=1)[:, None]
        if tie >= 0:
            order = tl.where(tied, mixed(mixed(token ^ tie)[:, None] + e[None, :]), 0x7FFFFFFF)
            tied = tied & (order == tl.min(order, axis=1)[:, None])
        index = tl.min(tl.where(tied, e[None, :], BLOCK_E), axis=1)
        tl.store(chosen_at + a, index.to(tl.int64), mask=token < num_tokens)
        key = tl.where(e[None, :] == index[:, None], taken, key)


@triton.jit
def count_pairs(
    chosen_ptr, count_ptr, num_pairs, num_blocks, num_experts, BLOCK_P: tl.constexpr, BLOCK_E: tl.constexpr
):
    """Program (block, trial) writes count[trial, block, :]."""
    block = tl.program_id(0)
    trial = tl.program_id(1).to(tl.int64)
    pair = block * BLOCK_P + tl.arange(0, BLOCK_P)
    e = tl.arange(0, BLOCK_E)
    expert = tl.load(chosen_ptr + trial * num_pairs + pair, mask=pair < num_pairs, other=-1).to(tl.int32)
    count = tl.sum((expert[:, None] == e[None, :]).to(tl.int32), axis=0)
    tl.store(count_ptr + (trial * num_blocks + block) * num_experts + e, count, mask=e < num_experts)


@triton.jit
def place_blocks(
    count_ptr,
    first_ptr,
    ends_ptr,
    load_ptr,
    num_pairs,
    num_blocks,
    num_experts,
    BLOCK_B: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Program `trial` turns the counts of its blocks into the first row of each (block, expert), ends and loads."""
    trial = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BLOCK_B)
    e = tl.arange(0, BLOCK_E)
    e_mask = e < num_experts
    base = trial * num_blocks * num_experts
    load = tl.zeros((BLOCK_E,), dtype=tl.int32)
    for start in range(0, num_blocks, BLOCK_B):
        offset = base + (start + b)[:, None] * num_experts + e[None, :]
        mask = (start + b < num_blocks)[:, None] & e_mask[None, :]
        load += tl.sum(tl.load(count_ptr + offset, mask=mask, other=0), axis=0)
    end = trial.to(tl.int32) * num_pairs + tl.cumsum(load, axis=0)
    tl.store(ends_ptr + trial * num_experts + e, end, mask=e_mask)
    tl.store(load_ptr + trial * num_experts + e, load.to(tl.int64), mask=e_mask)
    before = end - load
    for start in range(0, num_blocks, BLOCK_B):
        offset = base + (start + b)[:, None] * num_experts + e[None, :]
        mask = (start + b < num_blocks)[:, None] & e_mask[None, :]
        count = tl.load(count_ptr + offset, mask=mask, other=0)
        tl.store(first_ptr + offset, before[None, :] + tl.cumsum(count, axis=0) - count, mask=mask)
        before += tl.sum(count, axis=0)


@triton.jit
def place_pairs(
    chosen_ptr,
    first_ptr,
    token_ptr,
    slot_ptr,
    row_ptr,
    num_pairs,
    num_blocks,
    num_experts,
    num_active,
    BLOCK_P: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Program (block, trial) writes the row of its pairs, and the pair and token of those rows."""
    block = tl.program_id(0)
    trial = tl.program_id(1).to(tl.int64)
    pair = block * BLOCK_P + tl.arange(0, BLOCK_P)
    e = tl.arange(0, BLOCK_E)
    mask = pair < num_pairs
    slot = trial.to(tl.int32) * num_pairs + pair
    expert = tl.load(chosen_ptr + slot, mask=mask, other=-1).to(tl.int32)
    mine = expert[:, None] == e[None, :]
    first = tl.load(first_ptr + (trial * num_blocks + block) * num_experts + e, mask=e < num_experts, other=0)
    rank = tl.cumsum(mine.to(tl.int32), axis=0) - 1
    row = tl.sum(tl.where(mine, first[None, :] + rank, 0), axis=1)
    tl.store(row_ptr + slot, row, mask=mask)
    tl.store(slot_ptr + row, slot, mask=mask)
    tl.store(token_ptr + row, slot // num_active, mask=mask)
