"""What the forward pass of a stack returns, and the tap that a check can put into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.sums import column_sums

# Called as tap(name, block, input, output) with detached tensors. The block is 0 for what lies outside the blocks.
Tap = Callable[[str, int, Tensor, Tensor], None]


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output of a forward pass. Letters: K trials, T tokens, L MoE layers, E experts."""

    losses_KT: Tensor  # float32, cross entropy in nats, or a squared error
    load_LKE: Tensor  # int64, tokens routed to every expert
    regularizer_K: Tensor | None = None  # float32, what the gradients are of beside the mean cross entropy
    regularizers: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)  # metric -> [K] per MoE layer, or once
    scores: tuple[Tensor, ...] = ()  # per MoE layer [K, T, E] float32, without a gradient: what chooses the experts
    entropies: tuple[Tensor, ...] | None = None  # per MoE layer [K]: of a batch in pieces, whose scores are gone
    ranks: Callable[[], Tensor] | None = None  # -> [K, T] int64: how many classes score as high as the right one


def router_entropies(output: Output, backend: Backend = TORCH) -> tuple[Tensor, ...]:
    """Return, per MoE layer, [K] float32: the mean entropy of the normalized scores over the tokens, in nats.

    The order of the additions does not depend on K. A training step computes no entropies: only the steps that log
    them call this function, after the step's gradients. The backward pass needs the scores, so they are there.
    """
    if output.entropies is not None:
        return output.entropies
    return tuple(_entropy(scores_KTE, backend) for scores_KTE in output.scores)


def _entropy(scores_KTE: Tensor, backend: Backend) -> Tensor:
    p = scores_KTE / scores_KTE.sum(-1, keepdim=True)
    entropy_KT1 = torch.special.entr(p).sum(-1, keepdim=True)
    return column_sums(entropy_KT1, backend).squeeze(-1) / scores_KTE.shape[1]
