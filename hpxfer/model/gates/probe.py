"""Probe a gate of a user's before anything trains: a mistake in it is then one message and no traceback of a worker."""

from __future__ import annotations

from hpxfer.errors import HpxferError
from hpxfer.model.gates.gate import Gate

K, T, E, A = 2, 3, 4, 2


def require_sound(gate: Gate) -> None:
    """Raise HpxferError unless the gate's functions keep shape and dtype, are finite, and can be differentiated."""
    import torch

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
    _require_score(gate)


def _require_score(gate: Gate) -> None:
    """Raise HpxferError unless the score that the router's kernel computes for this gate is what `scores` computes."""
    import torch

    from hpxfer.kernels.router import SCORES

    name = gate.score_in_kernel
    if name is None:
        return
    where = f"gate {gate.name}: score_in_kernel"
    if name not in SCORES:
        raise HpxferError(f"{where} must be None or one of {', '.join(SCORES)}, got {name!r}")
    logits = torch.randn(K, T, E, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor([1.0, 2.0]).view(K, 1, 1)
    if not torch.allclose(gate.scores(logits, scale), SCORES[name](logits, scale)):
        raise HpxferError(f"{where} is {name!r}, but scores computes something else; leave score_in_kernel out")
