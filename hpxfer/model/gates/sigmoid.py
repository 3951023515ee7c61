"""sigmoid: each expert's own sigmoid. Its weights sum to nothing fixed, and the route scale has no part in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.model.gates.gate import Gate

if TYPE_CHECKING:
    from torch import Tensor


def _scores(logits_KTE: Tensor, route_scale_K11: Tensor) -> Tensor:
    return logits_KTE.sigmoid()


SIGMOID = Gate(
    name="sigmoid",
    formula="sigmoid(router logit)",
    sums_to_one_over=None,
    scores=_scores,
    score_in_kernel="sigmoid",
)
