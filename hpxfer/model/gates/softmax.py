"""softmax: the softmax over all experts, of which the active ones keep their share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.model.gates.gate import Gate

if TYPE_CHECKING:
    from torch import Tensor


def _scores(logits_KTE: Tensor, route_scale_K11: Tensor) -> Tensor:
    return route_scale_K11 * logits_KTE.softmax(-1)


SOFTMAX = Gate(
    name="softmax",
    formula="route_scale * softmax(router logits), over all experts",
    sums_to_one_over="all",
    scores=_scores,
    score_in_kernel="scaled_softmax",
)
