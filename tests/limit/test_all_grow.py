"""Regime III: the solver against finite networks, and what its equations say of kappa."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import deviations, finite, limit_of, worst
from limit_cases import CONSTANTS, ZERO_READOUT, changing, full_batch, three

from hpxfer.limit.all_grow import passes

pytestmark = pytest.mark.slow

LR = 0.12
FINITE = {
    "tied, no readout at first": (three("mssp", 0.25, 0.25, **ZERO_READOUT), full_batch(LR)),
    "tied": (three("mssp", 0.25, 0.25), full_batch(LR)),
    "untied": (three("mup", 0.25, 0.25), full_batch(LR)),
    "tied, other ratios": (three("mssp", 0.5, 0.125), full_batch(LR)),
    "tied, top-k of a quarter, 1/K": (
        three("mssp", 0.25, 0.25, active_share=0.25, aggregation="1/K"),
        full_batch(0.05),
    ),
    "untied, top-k of a quarter, 1/K": (
        three("mup", 0.25, 0.25, active_share=0.25, aggregation="1/K"),
        full_batch(0.05),
    ),
    "tied, tanh of inputs": (three("mssp", 0.25, 0.25, input_activation="tanh"), full_batch(LR)),
    "untied, gelu of inputs": (three("mup", 0.25, 0.25, input_activation="gelu"), full_batch(LR)),
    "tied, constants, two outputs, new batches": (
        three("mssp", 0.25, 0.25, inverse_temperature=1.5, **CONSTANTS),
        changing(0.06, outputs=2),
    ),
    "untied, constants, two outputs, new batches": (
        three("mup", 0.25, 0.25, **CONSTANTS),
        changing(0.06, outputs=2),
    ),
    "tied, cross entropy, new batches": (three("mssp", 0.25, 0.25), changing(0.5, classes=3)),
}

# test_limit_twins.py compares the same networks of these with the same limits: its references of regime III.
AMONG_THE_TWINS = {"tied, no readout at first", "tied", "untied"}


@pytest.mark.parametrize("name", [name for name in FINITE if name not in AMONG_THE_TWINS])
def test_finite_networks_approach_the_limit(name: str) -> None:
    network, given = FINITE[name]
    z = deviations(limit_of(passes, network, given, sites=2048), finite(network, given, (64, 128), seeds=200))
    assert worst(z) < 4, z


def test_untied_experts_know_of_kappa_by_their_router_alone() -> None:
    # Table B.1: the router's LR is 1 in regime III, so its update has 1/kappa. Nothing else has if it starts at 0.
    def of(kappa: float, rate: float) -> list[Any]:
        network = three("mup", kappa, 0.5, init_mult={"router": 0.0}, lr_mult={"router": rate})
        return passes(network, full_batch(LR), sites=64, seed=0)

    for a, b, c in zip(of(0.25, 4 * 0.25), of(4.0, 4 * 4.0), of(4.0, 4 * 0.25), strict=True):
        assert b.numbers == pytest.approx(a.numbers, abs=1e-11)
        last = c.numbers["logit_mean"]
    assert abs(last - b.numbers["logit_mean"]) > 1e-3  # the twin without the factor


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    network, given = FINITE["tied, top-k of a quarter, 1/K"]
    once, again, other = (passes(network, given, sites=256, seed=seed) for seed in (4, 4, 5))
    for a, b in zip(once, again, strict=True):
        assert a.numbers == b.numbers
        assert a.outputs.tobytes() == b.outputs.tobytes()
    assert other[-1].numbers["loss"] != once[-1].numbers["loss"]


def test_the_error_falls_faster_than_that_of_plain_sampling() -> None:
    network, given = FINITE["tied"]

    def spread(sites: int) -> float:
        return float(
            np.std([passes(network, given, sites=sites, seed=s)[-1].numbers["loss"] for s in range(12)], ddof=1)
        )

    assert spread(2048) < spread(128) / 5  # a plain sample of 16 times the sites has a quarter


def test_nothing_is_said_before_the_first_update() -> None:
    for network, given in FINITE.values():
        np.testing.assert_allclose(passes(network, given, sites=256, seed=0)[0].outputs, 0, atol=1e-12)


def test_larger_inputs_are_a_larger_first_layer() -> None:
    network, given = three("mssp", 0.25, 0.5, **CONSTANTS), changing(0.06)
    other = replace(
        network,
        init_mult={**network.init_mult, "embedding": network.std("embedding") / 2},
        lr_mult={**network.lr_mult, "embedding": network.rate("embedding") / 4},
    )
    doubled = replace(given, batches=tuple(replace(batch, inputs=2 * batch.inputs) for batch in given.batches))
    for a, b in zip(passes(network, given, sites=256, seed=0), passes(other, doubled, sites=256, seed=0), strict=True):
        np.testing.assert_allclose(b.outputs, a.outputs, rtol=0, atol=1e-9)
        assert b.numbers == pytest.approx(a.numbers, abs=1e-9)
