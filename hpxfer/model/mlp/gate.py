"""The gate of the MLP mixture: from logits to the weights of the experts, and back.

The active experts are constants in the backward pass: no gradient flows through the choice, and none to the logits of
experts that were left out (Why Routers Freeze, eqs. 376, 377 and 385).

Letters: K trials, B samples, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.kernels.routing import choose_experts
from hpxfer.model.padded import padded


@dataclass(frozen=True, kw_only=True)
class Gated:
    """What a gate gives."""

    scores: Tensor  # [K, B, E] of all experts, by which a balancing rule chooses
    weights: Tensor  # [K, B, E], zero for those that are not active
    active: Tensor | None  # [K, B, E] bool; None where all experts are active
    load: Tensor  # [K, E] int64


def gate(
    kind: str, logits_KBE: Tensor, scale_K11: Tensor, num_active: int, bias_KE: Tensor | None, ties_K: Tensor | None
) -> Gated:
    """Return the weights of the experts. `scale` multiplies those of a gate that sums to one.

    `bias` is that of the rule that balances experts: the largest score + bias are chosen. Without one it is None, and
    the largest logits are chosen, as two large logits may have the same rounded score.
    """
    num_trials, batch, experts = logits_KBE.shape
    is_sigmoid = kind == "sigmoid"
    scores = padded(torch.sigmoid, logits_KBE) if is_sigmoid else logits_KBE.softmax(-1)
    if num_active == experts:
        weights = scores if is_sigmoid else scores * scale_K11
        load = torch.full((num_trials, experts), batch, dtype=torch.int64, device=logits_KBE.device)
        return Gated(scores=scores, weights=weights, active=None, load=load)
    by, bias_KE = (logits_KBE, torch.zeros_like(logits_KBE[:, 0])) if bias_KE is None else (scores, bias_KE)
    chosen = choose_experts(by, bias_KE, num_active, ties_K=ties_K)
    active = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, chosen, True)
    if kind == "normalized_softmax":
        weights = logits_KBE.masked_fill(~active, -torch.inf).softmax(-1) * scale_K11
    else:
        weights = torch.where(active, scores if is_sigmoid else scores * scale_K11, 0.0)
    return Gated(scores=scores, weights=weights, active=active, load=active.sum(1))


def gate_backward(kind: str, gated: Gated, scale_K11: Tensor, grad_KBE: Tensor) -> Tensor:
    """Return the gradient by the logits, given the one by the weights."""
    if gated.active is not None:
        grad_KBE = torch.where(gated.active, grad_KBE, 0.0)
    weights = gated.weights
    if kind == "sigmoid":
        return grad_KBE * weights * (1 - gated.scores)
    mean = (grad_KBE * weights).sum(-1, keepdim=True) / scale_K11
    if kind == "softmax" and gated.active is not None:  # normalized over all experts, of which some were left out
        return grad_KBE * weights - gated.scores * mean * scale_K11
    return weights * (grad_KBE - mean)
