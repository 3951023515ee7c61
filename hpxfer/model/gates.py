"""Gates: how router logits become the weights of the active experts. Torch is imported when a gate is used.

To add a gate, write a row and add its name to `GATES`. From outside, call `register_gate` in a plug-in.
`hpxfer.testing.gates.GateSuite` holds a gate to the rules.

Letters: K trials, T tokens, E experts, A active experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hpxfer.errors import HpxferError
from hpxfer.registry import Registry

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


GATES: Registry[Gate] = Registry(
    "gate",
    {name: f"{__name__}:{name.upper()}" for name in ("sigmoid", "softmax", "normalized_sigmoid", "normalized_softmax")},
)
register_gate = GATES.register


def _sigmoid(logits_KTE: Tensor, route_scale_K11: Tensor) -> Tensor:
    return logits_KTE.sigmoid()


def _softmax(logits_KTE: Tensor, route_scale_K11: Tensor) -> Tensor:
    return logits_KTE.softmax(-1)


def _scaled_softmax(logits_KTE: Tensor, route_scale_K11: Tensor) -> Tensor:
    return route_scale_K11 * logits_KTE.softmax(-1)


def _normalized_sigmoid(logits_KTA: Tensor, route_scale_K11: Tensor) -> Tensor:
    """Return sigmoid / sum of sigmoids as the softmax of the log-sigmoids.

    So computed there is no 0/0 where all sigmoids are tiny. With one active expert the gradient is an exact zero, of
    which Adam makes no step.
    """
    from torch.nn.functional import logsigmoid

    return route_scale_K11 * logsigmoid(logits_KTA).softmax(-1)


# Each expert's own sigmoid. The weights sum to nothing fixed, and the route scale has no part in them.
SIGMOID = Gate(
    name="sigmoid",
    formula="sigmoid(router logit)",
    sums_to_one_over=None,
    scores=_sigmoid,
    score_in_kernel="sigmoid",
)
# The softmax over all experts, of which the active ones keep their share.
SOFTMAX = Gate(
    name="softmax",
    formula="route_scale * softmax(router logits), over all experts",
    sums_to_one_over="all",
    scores=_scaled_softmax,
    score_in_kernel="scaled_softmax",
)
# The sigmoids of the active experts, divided by their sum (2605.23893).
NORMALIZED_SIGMOID = Gate(
    name="normalized_sigmoid",
    formula="route_scale * sigmoid(router logit) / sum over the active experts",
    sums_to_one_over="active",
    scores=_sigmoid,
    active_weights=_normalized_sigmoid,
    score_in_kernel="sigmoid",
)
# The softmax over the active experts alone, as in Mixtral and Qwen3-MoE.
NORMALIZED_SOFTMAX = Gate(
    name="normalized_softmax",
    formula="route_scale * softmax(router logits), over the active experts",
    sums_to_one_over="active",
    scores=_softmax,
    active_weights=_scaled_softmax,
    score_in_kernel="softmax",
)


def require_sound(gate: Gate) -> None:
    """Raise HpxferError unless the gate's functions keep shape and dtype, are finite, and can be differentiated.

    A mistake in a gate of a user's is then one message before anything trains, and no traceback of a worker.
    """
    import torch

    K, T, E, A = 2, 3, 4, 2
    generator = torch.Generator().manual_seed(0)
    scale = torch.ones(K, 1, 1)
    functions = {"scores": (gate.scores, E), "active_weights": (gate.active_weights, A)}
    for name, (function, size) in functions.items():
        if function is None:
            continue
        logits = torch.randn(K, T, size, generator=generator, requires_grad=True)
        where = f"gate {gate.name}: {name}"
        try:
            out = function(logits, scale)
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
            raise HpxferError(f"{where} must take logits {list(logits.shape)}, got {got}") from error
        if not isinstance(out, torch.Tensor) or out.shape != logits.shape or out.dtype != logits.dtype:
            got = f"{out.dtype} {list(out.shape)}" if isinstance(out, torch.Tensor) else type(out).__name__
            raise HpxferError(f"{where} must return float32 of its logits' shape, {list(logits.shape)}, got {got}")
        if not out.isfinite().all():
            numbers = out.detach().flatten()[:4].tolist()
            raise HpxferError(f"{where} must be finite for finite logits, got {numbers}, ...")
        if not out.requires_grad:
            raise HpxferError(f"{where} must depend on the logits through operations that autograd differentiates")
    _require_score(gate, torch.randn(K, T, E, generator=generator))


def _require_score(gate: Gate, logits: Tensor) -> None:
    """Raise HpxferError unless the score that the router's kernel computes for this gate is what `scores` computes."""
    import torch

    from hpxfer.kernels.router import SCORES

    name = gate.score_in_kernel
    if name is None:
        return
    where = f"gate {gate.name}: score_in_kernel"
    if name not in SCORES:
        raise HpxferError(f"{where} must be None or one of {', '.join(SCORES)}, got {name!r}")
    scale = torch.tensor([1.0, 2.0]).view(-1, 1, 1)
    if not torch.allclose(gate.scores(logits, scale), SCORES[name](logits, scale)):
        raise HpxferError(f"{where} is {name!r}, but scores computes something else; leave score_in_kernel out")
