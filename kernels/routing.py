"""Routing: which experts a token meets, and the order of the rows that go through the experts.

    active(t) = the A experts of largest gate[t, e] + bias[e], ties to the lowest index; A/G in each of G groups
    rows sorted by (trial, expert), token order kept inside an expert

Letters: K trials, T tokens, E experts, A active experts, G groups, N = K*T*A rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Groups(NamedTuple):
    """How N rows lie in K*E groups. A row is a (token, slot) pair; before sorting, slot a of token t is row t*A + a."""

    token: Tensor  # [N] int64, the flat token (k*T + t) of every sorted row
    slot: Tensor  # [N] int64, the (token, slot) pair of every sorted row
    row: Tensor  # [N] int64, the sorted row of every (token, slot) pair: the inverse of `slot`
    ends: Tensor  # [K*E] int32, where every group ends
    load: Tensor  # [K, E] int64, rows of every group


def choose_experts(gates_KTE: Tensor, bias_KE: Tensor, num_active: int, num_groups: int = 1) -> Tensor:
    """Return [K, T, A] int64: the active experts of every token, best first. No gradient flows through the choice.

    The experts lie in `num_groups` contiguous groups of equal size; num_active / num_groups are chosen in each, and
    stand in the order of the groups.
    """
    num_trials, num_tokens, num_experts = gates_KTE.shape
    scores = (gates_KTE.detach() + bias_KE.unsqueeze(1)).view(num_trials, num_tokens, num_groups, -1)
    # Not torch.topk: it leaves the order of ties unspecified.
    best = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., : num_active // num_groups]
    if num_groups > 1:
        best = best + torch.arange(0, num_experts, num_experts // num_groups, device=best.device).unsqueeze(1)
    return best.flatten(2)


def group_rows(chosen_KTA: Tensor, num_experts: int) -> Groups:
    """Return the rows of all (token, slot) pairs sorted by (trial, expert); integer work only, so exact."""
    num_trials, _, num_active = chosen_KTA.shape
    trial = torch.arange(num_trials, device=chosen_KTA.device).view(-1, 1, 1)
    group = (chosen_KTA + trial * num_experts).flatten()
    slot = torch.sort(group, stable=True).indices
    row = torch.empty_like(slot)
    row[slot] = torch.arange(slot.numel(), device=slot.device)
    load = torch.bincount(group, minlength=num_trials * num_experts)
    token = slot if num_active == 1 else slot // num_active
    return Groups(token, slot, row, load.cumsum(0).to(torch.int32), load.view(num_trials, num_experts))
