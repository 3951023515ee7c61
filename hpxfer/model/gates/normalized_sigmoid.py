"""normalized_sigmoid: the sigmoids of the active experts, divided by their sum (2605.23893)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.model.gates.gate import Gate

if TYPE_CHECKING:
    from torch import Tensor


def _scores(logits_KTE: Tensor, route_scale_K11: Tensor) -> Tensor:
    return logits_KTE.sigmoid()


def _active_weights(logits_KTA: Tensor, route_scale_K11: Tensor) -> Tensor:
    """Return sigmoid / sum of sigmoids as the softmax of the log-sigmoids.

    So computed there is no 0/0 where all sigmoids are tiny. With one active expert the gradient is an exact zero, of
    which Adam makes no step.
    """
    from torch.nn.functional import logsigmoid

    return route_scale_K11 * logsigmoid(logits_KTA).softmax(-1)


NORMALIZED_SIGMOID = Gate(
    name="normalized_sigmoid",
    formula="route_scale * sigmoid(router logit) / sum over the active experts",
    sums_to_one_over="active",
    scores=_scores,
    active_weights=_active_weights,
    score_in_kernel="sigmoid",
)
