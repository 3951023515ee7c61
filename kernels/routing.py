"""Routing: the active experts of every token, and the order of the rows that the experts compute.

    active(t) = the A experts of largest score[t, e] + bias[e]; A/G in each of G groups, or all A in the best groups
    rows are sorted by (trial, expert), and by token within an expert

Of experts with equal numbers the lowest index is chosen, or the first in an order that a hash of (key of the trial,
token, expert) draws for every token. The hash is made of 32-bit integers, so that every device draws the same order.

Torch's code uses stable sorts. Triton's (`routing_triton.py`) is a counting sort with the same order and int32 indices,
which never waits for the host.

Letters: K trials, T tokens, E experts, A active experts, G groups, N = K*T*A rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend, launch
from hpxfer.kernels.grouped_launch import power_of_2

# Elements per block (tokens or pairs, by experts), the most pairs per block, and elements per block of counts.
_CHOOSE_BLOCK = 2048
_SORT_BLOCK = 8192
_MAX_PAIRS = 1024
_COUNT_BLOCK = 2048
# In place of the key of a trial whose ties go to the lowest index. The keys of the others are not negative.
BY_INDEX = -1


class Groups(NamedTuple):
    """How N rows lie in K*E groups. A row is a (token, slot) pair. Before sorting, slot a of token t is row t*A + a.

    The three index tensors are int64 from torch and int32 from Triton.
    """

    token: Tensor  # [N], the flat token (k*T + t) of every sorted row
    slot: Tensor  # [N], the (token, slot) pair of every sorted row
    row: Tensor  # [N], the sorted row of every (token, slot) pair: the inverse of `slot`
    ends: Tensor  # [K*E] int32, where every group ends
    load: Tensor  # [K, E] int64, rows of every group


def choose_experts(
    scores_KTE: Tensor,
    bias_KE: Tensor,
    num_active: int,
    num_groups: int = 1,
    backend: Backend = TORCH,
    ties_K: Tensor | None = None,
    *,
    top_groups: int = 0,
) -> Tensor:
    """Return [K, T, A] int64: the active experts of every token, best first. No gradient flows through the choice.

    The experts lie in `num_groups` contiguous groups of equal size. num_active / num_groups are chosen in each group.
    The chosen are listed in the order of the groups. With `top_groups`, all are chosen in that many groups: those whose
    two best experts have the largest sum of score + bias (DeepSeek-V3). Torch then chooses on every device.

    `ties` [K] int32 has the key of every trial that breaks ties in a random order, and BY_INDEX for the other trials.
    None stands for BY_INDEX in all of them.
    """
    if backend.is_triton and not top_groups:
        chosen_KTA: Tensor = _choose(scores_KTE.detach(), bias_KE.detach(), num_active, num_groups, ties_K)
        return chosen_KTA
    num_trials, num_tokens, num_experts = scores_KTE.shape
    biased = (scores_KTE.detach() + bias_KE.unsqueeze(1)).view(num_trials, num_tokens, num_groups, -1)
    if top_groups:
        biased = _of_best_groups(biased, top_groups, ties_K).flatten(2).unsqueeze(2)
        num_groups = 1
    order = None
    if ties_K is not None:
        order = torch.argsort(tie_order(ties_K, num_tokens, num_experts).view(biased.shape), dim=-1, stable=True)
        biased = biased.gather(-1, order)
    # Not torch.topk, which leaves the order of ties unspecified.
    best = torch.sort(biased, dim=-1, descending=True, stable=True).indices[..., : num_active // num_groups]
    if order is not None:
        best = order.gather(-1, best)
    if num_groups > 1:
        best = best + torch.arange(0, num_experts, num_experts // num_groups, device=best.device).unsqueeze(1)
    return best.flatten(2)


def _of_best_groups(biased_KTGC: Tensor, top_groups: int, ties_K: Tensor | None) -> Tensor:
    """Return the numbers of the best groups, and minus infinity in the others.

    Of groups with equal sums the first is taken, or the one that holds the first expert in the random order.
    """
    sums_KTG = torch.sort(biased_KTGC, dim=-1, descending=True).values[..., :2].sum(-1)
    order = None
    if ties_K is not None:
        num_tokens, num_experts = biased_KTGC.shape[1], biased_KTGC[0, 0].numel()
        first_KTG = tie_order(ties_K, num_tokens, num_experts).view(biased_KTGC.shape).amin(-1)
        order = torch.argsort(first_KTG, dim=-1, stable=True)
        sums_KTG = sums_KTG.gather(-1, order)
    best = torch.sort(sums_KTG, dim=-1, descending=True, stable=True).indices[..., :top_groups]
    best = best if order is None else order.gather(-1, best)
    groups = torch.arange(biased_KTGC.shape[2], device=best.device)
    is_best = (best.unsqueeze(-1) == groups).any(-2)
    return torch.where(is_best.unsqueeze(-1), biased_KTGC, -torch.inf)


def tie_order(ties_K: Tensor, num_tokens: int, num_experts: int) -> Tensor:
    """Return [K, T, E] int32: of experts with equal scores, the one with the lowest number is chosen.

    The numbers of a token differ, because `_mixed` maps no two integers to the same one.
    """
    token_T1 = torch.arange(num_tokens, dtype=torch.int32, device=ties_K.device).unsqueeze(1)
    expert_E = torch.arange(num_experts, dtype=torch.int32, device=ties_K.device)
    ties_K11 = ties_K.view(-1, 1, 1)
    return torch.where(ties_K11 == BY_INDEX, expert_E, _mixed(_mixed(token_T1 ^ ties_K11) + expert_E))


def _mixed(x: Tensor) -> Tensor:
    """Return the hash `lowbias32` of int32 numbers, which wrap around. (Wellons, Prospecting for hash functions.)"""
    x = x ^ (x >> 16 & 0xFFFF)  # `&` makes the shift of a signed number that of an unsigned one
    x = x * 0x7FEB352D
    x = x ^ (x >> 15 & 0x1FFFF)
    x = x * (0x846CA68B - 2**32)
    return x ^ (x >> 16 & 0xFFFF)


def of_chosen(values_KTE: Tensor, chosen_KTA: Tensor, backend: Backend = TORCH) -> Tensor:
    """Return [K, T, A]: the values of the chosen experts. Each is chosen once per token. Differentiable."""
    if backend.is_triton:
        values_KTA: Tensor = _OfChosen.apply(values_KTE, chosen_KTA)  # type: ignore[no-untyped-call]
        return values_KTA
    return values_KTE.gather(-1, chosen_KTA)


def group_rows(chosen_KTA: Tensor, num_experts: int, backend: Backend = TORCH) -> Groups:
    """Return the rows of all (token, slot) pairs, sorted by (trial, expert). It is exact: all numbers are integers."""
    if backend.is_triton:
        return Groups(*_sort(chosen_KTA, num_experts))
    num_trials, _, num_active = chosen_KTA.shape
    trial = torch.arange(num_trials, device=chosen_KTA.device).view(-1, 1, 1)
    group = (chosen_KTA + trial * num_experts).flatten()
    slot = torch.sort(group, stable=True).indices
    row = torch.empty_like(slot)
    row[slot] = torch.arange(slot.numel(), device=slot.device)
    load = torch.bincount(group, minlength=num_trials * num_experts)
    token = slot if num_active == 1 else slot // num_active
    return Groups(token, slot, row, load.cumsum(0).to(torch.int32), load.view(num_trials, num_experts))


class _OfChosen(torch.autograd.Function):
    """A gather whose gradient needs no scatter.

    Torch's scatter uses atomics. In deterministic mode it copies from the host, which is an error in a CUDA graph.
    """

    @staticmethod
    def forward(ctx: Any, values_KTE: Tensor, chosen_KTA: Tensor) -> Tensor:
        ctx.save_for_backward(chosen_KTA)
        ctx.num_experts = values_KTE.shape[-1]
        return values_KTE.gather(-1, chosen_KTA)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (chosen_KTA,), dvalues_KTA = ctx.saved_tensors, grads[0]
        expert_E = torch.arange(ctx.num_experts, device=chosen_KTA.device)
        dvalues_KTE = dvalues_KTA.new_zeros(())
        slots = (values.unsqueeze(-1).unbind(-2) for values in (chosen_KTA, dvalues_KTA))
        for chosen_KT1, dvalue_KT1 in zip(*slots, strict=True):
            dvalues_KTE = torch.where(chosen_KT1 == expert_E, dvalue_KT1, dvalues_KTE)
        return dvalues_KTE, None


@torch.library.custom_op("hpxfer::choose_experts", mutates_args=())
def _choose(gates: Tensor, bias: Tensor, num_active: int, num_groups: int, ties: Tensor | None) -> Tensor:
    from hpxfer.kernels.routing_triton import choose

    num_trials, num_tokens, num_experts = gates.shape
    chosen = gates.new_empty((num_trials, num_tokens, num_active), dtype=torch.int64)
    block_e = power_of_2(num_experts)
    block_t = max(1, _CHOOSE_BLOCK // block_e)
    launch(
        choose,
        (-(-num_tokens // block_t), num_trials),
        *(gates.float().contiguous(), bias.float().contiguous()),
        *(chosen.view(torch.int32) if ties is None else ties, chosen),
        *(num_tokens, num_experts, num_active, num_groups, 0 if ties is None else num_trials),
        BLOCK_T=block_t,
        BLOCK_E=block_e,
    )
    return chosen


@_choose.register_fake
def _(gates: Tensor, bias: Tensor, num_active: int, num_groups: int, ties: Tensor | None) -> Tensor:
    return gates.new_empty((gates.shape[0], gates.shape[1], num_active), dtype=torch.int64)


@torch.library.custom_op("hpxfer::group_rows", mutates_args=())
def _sort(chosen: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from hpxfer.kernels.routing_triton import count_pairs, place_blocks, place_pairs

    chosen = chosen.contiguous()
    num_trials, num_tokens, num_active = chosen.shape
    num_pairs = num_tokens * num_active
    block_e = power_of_2(num_experts)
    block_p = max(1, min(_MAX_PAIRS, _SORT_BLOCK // block_e))
    num_blocks = -(-num_pairs // block_p)
    token, slot, row = (chosen.new_empty(chosen.numel(), dtype=torch.int32) for _ in range(3))
    count, first = (token.new_empty((num_trials, num_blocks, num_experts)) for _ in range(2))
    ends = token.new_empty(num_trials * num_experts)
    load = chosen.new_empty((num_trials, num_experts), dtype=torch.int64)
    sizes = (num_pairs, num_blocks, num_experts)
    blocks = {"BLOCK_P": block_p, "BLOCK_E": block_e}
    launch(count_pairs, (num_blocks, num_trials), chosen, count, *sizes, **blocks)
    block_b = max(1, min(power_of_2(num_blocks), _COUNT_BLOCK // block_e))
    launch(place_blocks, (num_trials,), count, first, ends, load, *sizes, BLOCK_B=block_b, BLOCK_E=block_e)
    launch(place_pairs, (num_blocks, num_trials), chosen, first, token, slot, row, *sizes, num_active, **blocks)
    return token, slot, row, ends, load


@_sort.register_fake
def _(chosen: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    token, slot, row = (chosen.new_empty(chosen.numel(), dtype=torch.int32) for _ in range(3))
    ends = token.new_empty(chosen.shape[0] * num_experts)
    return token, slot, row, ends, chosen.new_empty((chosen.shape[0], num_experts))
