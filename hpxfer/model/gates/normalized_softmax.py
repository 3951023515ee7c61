"""normalized_softmax: the softmax over the active experts alone, as in Mixtral and Qwen3-MoE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.model.gates.gate import Gate

if TYPE_CHECKING:
    from torch import Tensor


def _scores(logits_KTE: Tensor, route_scale_K11: Tensor) -> Tensor:
    return logits_KTE.softmax(-1)


def _active_weights(logits_KTA: Tensor, route_scale_K11: Tensor) -> Tensor:
    return route_scale_K11 * logits_KTA.softmax(-1)


NORMALIZED_SOFTMAX = Gate(
    name="normalized_softmax",
    formula="route_scale * softmax(router logits), over the active experts",
    sums_to_one_over="active",
    scores=_scores,
    active_weights=_active_weights,
    score_in_kernel="softmax",
)
