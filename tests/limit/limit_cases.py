"""The networks and trainings on which limits are compared with finite networks, and what to ask of a solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpxfer.limit import Batch, Given, Network
from hpxfer.limit.layers import Pass

CONSTANTS: dict[str, Any] = {
    "init_mult": {"embedding": 1.2, "router": 1.5, "expert_in": 0.8, "expert_out": 1.25, "readout": 0.9},
    "lr_mult": {"embedding": 0.8, "router": 1.6, "expert_in": 1.3, "expert_out": 0.7, "readout": 1.2},
}
ZERO_READOUT: dict[str, Any] = {"init_mult": {"readout": 0.0}}


def batch(*, samples: int = 3, inputs: int = 4, outputs: int = 1, classes: int = 0, seed: int = 3) -> Batch:
    """Return inputs with entries N(0, 1), and targets of order one or classes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, inputs))
    targets = rng.integers(0, classes, samples) if classes else rng.standard_normal((samples, outputs))
    return Batch(inputs=x, targets=targets)


def loss_of(classes: int) -> dict[str, Any]:
    return {"loss": "cross_entropy", "num_classes": classes} if classes else {}


def full_batch(lr: float, *, steps: int = 5, classes: int = 0, **kinds: Any) -> Given:
    """Return the training on one batch."""
    return Given.full_batch(batch(classes=classes, **kinds), steps=steps, lr=lr, **loss_of(classes))


def changing(lr: float, *, steps: int = 4, classes: int = 0, **kinds: Any) -> Given:
    """Return a training whose every pass has samples, a batch size and an LR of its own."""
    batches = tuple(batch(samples=2 + t % 2, classes=classes, seed=20 + t, **kinds) for t in range(steps + 1))
    lrs = tuple(lr * (1 + 0.2 * (t % 3)) for t in range(steps))
    return Given(batches=batches, lrs=lrs, **loss_of(classes))


def one(parameterization: Any = "mup", **kinds: Any) -> Network:
    """Return a network of regime I."""
    return Network(regime="I", **{"parameterization": parameterization, "num_experts": 3, "expert_ratio": 0.5, **kinds})


def two(parameterization: Any, kappa: float, width: int, **kinds: Any) -> Network:
    """Return a network of regime II: kappa, N_e."""
    kinds = {"aggregation": "1/M", **kinds}
    return Network(regime="II", parameterization=parameterization, experts_per_width=kappa, expert_width=width, **kinds)


def three(parameterization: Any, kappa: float, iota: float, **kinds: Any) -> Network:
    """Return a network of regime III: kappa, iota."""
    kinds = {"aggregation": "1/M", **kinds}
    return Network(regime="III", parameterization=parameterization, experts_per_width=kappa, expert_ratio=iota, **kinds)


def scaled(network: Network, role: Any, *, std: float, rate: float) -> Network:
    """Return the network whose role has other constants."""
    init, lr = {role: std * network.std(role)}, {role: rate * network.rate(role)}
    return replace(network, init_mult={**network.init_mult, **init}, lr_mult={**network.lr_mult, **lr})


def with_batches(given: Given, change: Callable[[int, Batch], tuple[Any, Any]]) -> Given:
    """Return a training of other samples: `change` returns inputs and targets of a pass."""
    made = (change(t, each) for t, each in enumerate(given.batches))
    return replace(given, batches=tuple(Batch(inputs=x, targets=y) for x, y in made))


def same(one: list[Pass], other: list[Pass], within: float) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(b.outputs, a.outputs, rtol=0, atol=within)
        assert b.numbers == pytest.approx(a.numbers, abs=within)
