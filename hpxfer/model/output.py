"""What the forward pass of a stack returns, and the tap that a check can put into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

# Called as tap(name, block, input, output) with detached tensors. The block is 0 for what lies outside the blocks.
Tap = Callable[[str, int, Tensor, Tensor], None]


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output of a forward pass. Letters: K trials, T tokens, L MoE layers, E experts."""

    losses_KT: Tensor  # float32, cross entropy in nats
    load_LKE: Tensor  # int64, tokens routed to every expert
    entropy_LK: Tensor | None  # float32, mean entropy of the normalized gates in nats, if probed
