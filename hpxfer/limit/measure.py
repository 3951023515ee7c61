"""The numbers that every solver measures at a pass."""

from __future__ import annotations

import numpy as np

from hpxfer.limit.given import Batch, Floats, Given
from hpxfer.limit.layers import Gated
from hpxfer.limit.losses import loss
from hpxfer.limit.text import Pass


def measured(
    given: Given,
    batch: Batch,
    f: Floats,
    *,
    logits: Floats,
    gated: Gated,
    h1_rms: float,
    h3_rms: float,
    margin: float | None = None,
) -> Pass:
    """Return what is measured at a pass: logits and weights are [P, experts]."""
    return Pass(
        outputs=f,
        numbers={
            "loss": loss(given.loss, f, batch.targets),
            "gate_mean": float(np.mean(gated.phi)),
            "gate_variance": float(np.mean(np.var(gated.phi, axis=1))),
            "logit_mean": float(np.mean(logits)),
            "logit_variance": float(np.mean(np.var(logits, axis=1))),
            "h1_rms": h1_rms,
            "h3_rms": h3_rms,
        },
        margin=margin,
    )
