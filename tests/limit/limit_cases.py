"""The networks and trainings on which limits are compared with finite networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpxfer.limit import Batch, Given, Network

CONSTANTS: dict[str, Any] = {
    "init_mult": {"embedding": 1.2, "router": 1.5, "expert_in": 0.8, "expert_out": 1.25, "readout": 0.9},
    "lr_mult": {"embedding": 0.8, "router": 1.6, "expert_in": 1.3, "expert_out": 0.7, "readout": 1.2},
}
ZERO_READOUT: dict[str, Any] = {"init_mult": {"readout": 0.0}}


def batch(*, samples: int = 3, inputs: int = 4, outputs: int = 1, classes: int = 0, seed: int = 3) -> Batch:
    """Return inputs with entries N(0, 1), and targets of order one or classes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, inputs))
    return Batch(
        inputs=x, targets=rng.integers(0, classes, samples) if classes else rng.standard_normal((samples, outputs))
    )


def full_batch(lr: float, *, steps: int = 5, classes: int = 0, **kinds: Any) -> Given:
    """Return the training on one batch."""
    loss: Any = {"loss": "cross_entropy", "num_classes": classes} if classes else {}
    return Given.full_batch(batch(classes=classes, **kinds), steps=steps, lr=lr, **loss)


def changing(lr: float, *, steps: int = 4, classes: int = 0, **kinds: Any) -> Given:
    """Return a training whose every pass has samples, a batch size and an LR of its own."""
    batches = tuple(batch(samples=2 + t % 2, classes=classes, seed=20 + t, **kinds) for t in range(steps + 1))
    lrs = tuple(lr * (1 + 0.2 * (t % 3)) for t in range(steps))
    loss: Any = {"loss": "cross_entropy", "num_classes": classes} if classes else {}
    return Given(batches=batches, lrs=lrs, **loss)


def two(parameterization: Any, kappa: float, width: int, **kinds: Any) -> Network:
    """Return a network of regime II: kappa, N_e."""
    kinds = {"aggregation": "1/M", **kinds}
    return Network(regime="II", parameterization=parameterization, experts_per_width=kappa, expert_width=width, **kinds)


def three(parameterization: Any, kappa: float, iota: float, **kinds: Any) -> Network:
    """Return a network of regime III: kappa, iota."""
    kinds = {"aggregation": "1/M", **kinds}
    return Network(regime="III", parameterization=parameterization, experts_per_width=kappa, expert_ratio=iota, **kinds)


def one(parameterization: Any = "mup", **kinds: Any) -> Network:
    """Return a network of regime I."""
    return Network(regime="I", **{"parameterization": parameterization, "num_experts": 3, "expert_ratio": 0.5, **kinds})
