"""Divergence: the rule by which a loss counts as bad, the same for the built-in trainer and for the user's own."""

from __future__ import annotations

import math

# A loss is a blow-up above this many times the larger of the first loss and that of a model without knowledge.
BLOW_UP = 4.0


def blow_up_limit(first_loss: float, guess_loss: float = 0.0) -> float:
    """Return the loss above which a trial has blown up.

    `guess_loss` is the loss of a model without knowledge, e.g. ln V for a uniform guess among V tokens, or 0 where it
    is not known. The limit is inf where the first loss is no positive number: a multiple of it would mean nothing.
    """
    unit = max(first_loss, guess_loss)
    return BLOW_UP * unit if math.isfinite(unit) and unit > 0 else math.inf


def is_bad(loss: float, limit: float) -> bool:
    """Return whether a loss is not finite or has blown up."""
    return not (math.isfinite(loss) and loss <= limit)
