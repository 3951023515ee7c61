"""Gate: the row of one gate.

Letters: K trials, T tokens, E experts, A active experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from hpxfer.kernels.router import Score

SumsOver = Literal["active", "all"]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """How router logits become the weights that the outputs of the active experts are multiplied by.

    The functions take and return float32 tensors, and autograd differentiates them. They treat each trial and each
    token by itself, so that a trial has the same bits whatever is stacked beside it.
    """

    name: str
    formula: str
    """The weight of an active expert, as people read it."""
    sums_to_one_over: SumsOver | None
    """What the weights sum to one over, before the route scale: the active experts, all experts, or nothing."""
    scores: Callable[[Tensor, Tensor], Tensor]
    """(logits [K, T, E], route scale [K, 1, 1]) -> scores [K, T, E].

    The experts of largest score + balancing bias are the active ones. A score is not negative."""
    probabilities: bool = True
    """Whether a token's scores, divided by their sum, are its probabilities. A balancing loss needs them."""
    active_weights: Callable[[Tensor, Tensor], Tensor] | None = None
    """(logits of the active experts [K, T, A], route scale [K, 1, 1]) -> weights [K, T, A].

    None: the weights are the scores of the active experts."""
    score_in_kernel: Score | None = None
    """The score of `hpxfer.kernels.router` that `scores` is. The Triton kernel of the router then chooses the experts.

    None, as in a gate of your own: `scores` runs on every backend, and a kernel of its own chooses."""
