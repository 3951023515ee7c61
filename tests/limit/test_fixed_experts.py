"""Regime I: the solver against an exact algorithm that shares no code with it, and against finite networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import deviations, finite, limit_of, worst
from exact_fixed_experts import ERRATA, Solved, solve_exactly
from limit_cases import CONSTANTS, changing, full_batch, one, same, scaled, with_batches

from hpxfer.limit import Given, Network
from hpxfer.limit.fixed_experts import passes

STEPS = 5
BIAS = np.array([1.5, -1.0, 0.6, -1.4])
SCHEDULE = np.random.default_rng(5).standard_normal((STEPS + 1, 4))


def linear(**kinds: Any) -> Network:
    """Return four linear experts of one matrix."""
    return one(**{"num_experts": 4, "expert_matrices": 1, "expert_ratio": 1.0, "aggregation": "none", **kinds})


def trained(classes: int = 0, **conditions: Any) -> Given:
    """Return a training with two outputs, or with classes. Its batches differ in size and content."""
    given = changing(0.12, steps=STEPS, classes=classes, **({} if classes else {"outputs": 2}))
    return replace(given, **conditions)


def masks(given: Given) -> tuple[np.ndarray, ...]:
    """Return two random experts of four for every sample."""
    rng = np.random.default_rng(11)
    return tuple(np.array([rng.permutation(4) < 2 for _ in batch.inputs]) for batch in given.batches)


EXACT = {
    "soft sigmoid": (linear(), trained()),
    "soft softmax, fixed bias": (
        linear(gate="softmax", router_bias="fixed"),
        trained(router_bias=np.tile(BIAS, (6, 1))),
    ),
    "constants, schedule, temperature": (
        linear(router_bias="schedule", inverse_temperature=1.5, **CONSTANTS),
        trained(router_bias=SCHEDULE),
    ),
    "drawn masks": (linear(gate="normalized_softmax", num_active=2), trained(active=masks(trained()))),
    "top-2 of a softmax, learned bias": (
        linear(gate="softmax", num_active=2, router_bias="learned"),
        trained(router_bias=np.tile(BIAS, (6, 1))),
    ),
    "top-2 of sigmoids, cross entropy, constants, 1/K": (
        linear(num_active=2, router_bias="fixed", aggregation="1/K", **CONSTANTS),
        trained(classes=3, router_bias=np.tile(BIAS, (6, 1))),
    ),
    "MSSP, 1/M": (
        linear(parameterization="mssp", router_bias="schedule", aggregation="1/M"),
        trained(router_bias=SCHEDULE),
    ),
}


def largest_difference(network: Network, given: Given, exact: Solved) -> float:
    """Return the largest difference of any number of any pass."""
    out = 0.0
    for t, now in enumerate(passes(network, given, sites=64, seed=0)):
        expected = {
            "loss": exact.loss[t],
            "gate_mean": exact.gates[t].mean(),
            "gate_variance": exact.gates[t].var(1).mean(),
            "logit_mean": exact.logits[t].mean(),
            "logit_variance": exact.logits[t].var(1).mean(),
            "h1_rms": exact.h1_rms[t],
            "h3_rms": exact.h3_rms[t],
        }
        assert expected.keys() == now.numbers.keys()
        out = max(out, *(abs(now.numbers[name] - value) for name, value in expected.items()))
        out = max(out, np.abs(now.outputs - exact.outputs[t]).max())
        if now.margin is not None and given.active is None:
            out = max(out, abs(now.margin - exact.margin[t]))
    return out


@pytest.mark.first
@pytest.mark.parametrize("name", EXACT)
def test_equals_the_exact_algorithm(name: str) -> None:
    network, given = EXACT[name]
    assert largest_difference(network, given, solve_exactly(network, given, given.num_outputs)) < 1e-12


@pytest.mark.first
@pytest.mark.parametrize("erratum", ERRATA)
def test_what_the_paper_prints_is_told_apart(erratum: str) -> None:
    network, given = EXACT["drawn masks"]
    assert largest_difference(network, given, solve_exactly(network, given, 2, frozenset([erratum]))) > 1e-3


LEARNING = np.tile(np.array([1.0, -1.0, 0.5]), (5, 1))
FINITE = {
    "two matrices": (one(), full_batch(0.15)),
    "two matrices, top-2, cross entropy, constants": (
        one(num_active=2, router_bias="fixed", gate="normalized_softmax", **CONSTANTS),
        replace(changing(0.5, classes=3), router_bias=LEARNING),
    ),
    "two matrices, tanh everywhere, softmax, constants": (
        one(activation="tanh", input_activation="tanh", gate="softmax", router_bias="learned", **CONSTANTS),
        replace(changing(0.1, outputs=2), router_bias=LEARNING),
    ),
    "two matrices, relu, MSSP": (one("mssp", activation="relu"), full_batch(0.15)),
    "one matrix, gelu after relu": (
        one(expert_matrices=1, activation="gelu", input_activation="relu", aggregation="none"),
        full_batch(0.1),
    ),
    "one matrix, drawn masks": (
        linear(gate="normalized_softmax", num_active=2),
        replace(changing(0.1, outputs=2), active=masks(changing(0.1))),
    ),
    "one matrix, tanh, top-2, learned bias": (
        one(expert_matrices=1, activation="tanh", num_active=2, router_bias="learned"),
        replace(changing(0.1, outputs=2), router_bias=LEARNING),
    ),
}


@pytest.mark.first
@pytest.mark.parametrize("name", FINITE)
def test_finite_networks_approach_the_limit(name: str) -> None:
    network, given = FINITE[name]
    z = deviations(limit_of(passes, network, given), finite(network, given, (128, 256), seeds=200))
    assert worst(z) < 4, z


def test_a_frozen_router_is_told_apart() -> None:
    network = linear(aggregation="1/K", inverse_temperature=2.0, router_bias="fixed", lr_mult={"router": 20.0})
    given = replace(full_batch(0.15), router_bias=np.tile(BIAS, (6, 1)))
    frozen = finite(network, given, (64, 128), seeds=200, frozen=("router",))
    assert worst(deviations(limit_of(passes, network, given, seeds=1), frozen)) > 8
    silent = replace(network, lr_mult={"router": 0.0})
    assert worst(deviations(limit_of(passes, silent, given, seeds=1), frozen)) < 4


# Properties: what holds of any network, to rounding. Nothing here is sampled.


def solved(network: Network, given: Given) -> list[Any]:
    return passes(network, given, sites=64, seed=0)


def test_the_order_of_samples_is_nothing_and_neither_is_a_repeated_batch() -> None:
    for name in ("constants, schedule, temperature", "top-2 of a softmax, learned bias"):
        network, given = EXACT[name]
        rng = np.random.default_rng(0)
        orders = [rng.permutation(len(batch.inputs)) for batch in given.batches]
        permuted = with_batches(given, lambda t, batch, at=orders: (batch.inputs[at[t]], batch.targets[at[t]]))
        twice = with_batches(given, lambda t, batch: (np.tile(batch.inputs, (2, 1)), np.tile(batch.targets, (2, 1))))
        plain = solved(network, given)
        for a, b, c, order in zip(plain, solved(network, permuted), solved(network, twice), orders, strict=True):
            np.testing.assert_allclose(b.outputs, a.outputs[order], rtol=0, atol=1e-12)
            np.testing.assert_allclose(c.outputs[: len(a.outputs)], a.outputs, rtol=0, atol=1e-12)
            assert b.numbers == pytest.approx(a.numbers, abs=1e-12)
            assert c.numbers == pytest.approx(a.numbers, abs=1e-12)


def test_only_the_angles_and_lengths_of_inputs_count() -> None:
    network, given = EXACT["constants, schedule, temperature"]
    rotation, _ = np.linalg.qr(np.random.default_rng(2).standard_normal((4, 4)))
    turned = with_batches(given, lambda t, batch: (batch.inputs @ rotation, batch.targets))
    same(solved(network, given), solved(network, turned), 1e-11)


def test_larger_inputs_are_a_larger_first_layer() -> None:
    network, given = EXACT["constants, schedule, temperature"]
    other = scaled(network, "embedding", std=1 / 3, rate=1 / 9)
    larger = with_batches(given, lambda t, batch: (3.0 * batch.inputs, batch.targets))
    same(solved(network, given), solved(other, larger), 1e-11)


def test_a_forward_multiplier_folds_into_std_and_lr() -> None:
    # c = 1/4 in place of 1 is the multiplier 1/4 of every expert: std 4 and LR 16 undo it.
    network, given = EXACT["soft softmax, fixed bias"]
    other = replace(scaled(network, "expert_out", std=4.0, rate=16.0), aggregation="1/K")
    same(solved(network, given), solved(other, given), 1e-11)


def test_nothing_is_said_before_the_first_update() -> None:
    for network, given in EXACT.values():
        np.testing.assert_allclose(solved(network, given)[0].outputs, 0, atol=1e-12)
