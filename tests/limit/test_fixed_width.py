"""Regime II: the solver against finite networks, closed forms, and its own error."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from agreement import Estimate, deviations, finite, limit_of, worst
from limit_cases import CONSTANTS, ZERO_READOUT, changing, full_batch, three, two
from numpy.polynomial.hermite_e import hermegauss
from scipy.integrate import quad
from scipy.special import expit, ndtri
from scipy.stats import norm

from hpxfer.limit import Batch, Given, Network, all_grow, fixed_width, gates, solve, spaces
from hpxfer.limit.fixed_width import passes
from hpxfer.limit.outcome import Pass

pytestmark = pytest.mark.slow

LR = 0.12
FINITE = {
    "MSSP, no readout at first": (two("mssp", 0.5, 2, **ZERO_READOUT), full_batch(LR)),
    "MSSP": (two("mssp", 0.5, 2), full_batch(LR)),
    "muP": (two("mup", 0.5, 2), full_batch(LR)),
    "MSSP, relu": (two("mssp", 1, 1, activation="relu"), full_batch(LR)),
    "muP, gelu after relu": (two("mup", 0.5, 2, activation="gelu", input_activation="relu"), full_batch(LR)),
    "MSSP, tanh everywhere": (two("mssp", 0.5, 2, activation="tanh", input_activation="tanh"), full_batch(LR)),
    "MSSP, top-k of a quarter": (two("mssp", 0.5, 2, active_share=0.25), full_batch(LR)),
    "muP, top-k of a half, 1/K, relu": (
        two("mup", 0.5, 2, active_share=0.5, aggregation="1/K", activation="relu"),
        full_batch(0.06),
    ),
    "MSSP, constants, two outputs, new batches": (
        two("mssp", 0.5, 2, inverse_temperature=1.5, **CONSTANTS),
        changing(0.06, outputs=2),
    ),
    "muP, cross entropy, new batches": (two("mup", 0.5, 2), changing(0.5, classes=3)),
}


@pytest.mark.parametrize("name", FINITE)
def test_finite_networks_approach_the_limit(name: str) -> None:
    network, given = FINITE[name]
    z = deviations(limit_of(passes, network, given), finite(network, given, (128, 256), seeds=200))
    assert worst(z) < 4, z


@pytest.mark.parametrize("share", [0.25, 0.3, 1 / 3, 0.01, 0.003])
@pytest.mark.parametrize("of", [two("mssp", 0.5, 2), three("mssp", 1, 0.5)], ids=["II", "III"])
def test_any_share_of_experts_is_active(of: Network, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most shares are no whole number of sites. E phi is an integral above a quantile."""
    network, given = replace(of, active_share=share), full_batch(0.1, steps=0, samples=1)

    def z() -> float:
        found = solve(network, given, sites=2048, seeds=16)
        std, phi = math.sqrt(found.series["logit_variance"].mean[0]), found.series["gate_mean"]
        expected, _ = quad(lambda x: expit(std * x) * norm.pdf(x), -ndtri(share), 12, epsabs=1e-13)
        assert phi.error is not None
        return float(abs(phi.mean[0] - expected) / phi.error[0])

    assert z() < 5
    if share != 0.25:  # negative twin: the nearest whole number of sites
        for room in (fixed_width, all_grow):
            monkeypatch.setattr(room, "top_share", lambda psi, k: gates.largest(psi, round(k * psi.shape[1])))
        assert z() > 10


def test_the_start_is_what_quadrature_gives() -> None:
    network = two("mssp", 0.5, 2, inverse_temperature=1.5, **CONSTANTS)
    given = changing(0.06, outputs=2)
    first = limit_of(passes, network, given, sites=2**14)
    x, weights = hermegauss(80)
    weights = weights / weights.sum()
    stds = 1.5 * 1.2 * np.linalg.norm(given.batches[0].inputs, axis=1) / 2  # init_mult of Q and W1, 1/sqrt(D)
    phi = expit(1.5 * stds[:, None] * x)
    variance = np.mean((phi - 0.5) ** 2 @ weights)
    # h3 = 1/M sum over i, j of (M/N_e)^1/2 phi_i h2_ij Z with h2 ~ N(0, (0.8 |h1|)^2)
    h1_squared = (1.2 * np.linalg.norm(given.batches[0].inputs, axis=1) / 2) ** 2
    h3_squared = np.mean(1.25**2 * (phi**2 @ weights) * 0.8**2 * h1_squared)
    expected = {
        "gate_mean": 0.5,
        "gate_variance": variance,
        "logit_mean": 0.0,
        "logit_variance": np.mean(stds**2),
        "h1_rms": np.mean(h1_squared),
        "h3_rms": h3_squared,
    }
    for name, value in expected.items():
        assert first[name].mean[0] == pytest.approx(value, rel=5e-3, abs=1e-9), name


def test_nothing_is_said_before_the_first_update() -> None:
    for network, given in FINITE.values():
        np.testing.assert_allclose(passes(network, given, sites=256, seed=0)[0].outputs, 0, atol=1e-12)


def spread(given: Given, sites: int) -> float:
    """Return the standard deviation of the final loss over the solver's seeds."""
    losses = [solved(two("mssp", 0.5, 2), given, sites=sites, seed=seed)[-1].numbers["loss"] for seed in range(16)]
    return float(np.std(losses, ddof=1))


def test_the_error_falls_faster_than_that_of_plain_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    given = full_batch(LR, steps=3)
    few, many = spread(given, 256), spread(given, 4096)
    # 16 times the sites: a plain sample has a quarter of the error.
    assert many < few / 5

    class Plain:
        """Independent points in place of the Sobol sequence."""

        def __init__(self, columns: int, rng: np.random.Generator) -> None:
            self.columns, self.rng = columns, rng

        def random_base2(self, m: int) -> np.ndarray:
            return self.rng.random((2**m, self.columns))

    monkeypatch.setattr(spaces, "qmc", SimpleNamespace(Sobol=Plain))
    assert many < spread(given, 4096) / 2


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    network, given = FINITE["MSSP, top-k of a quarter"]
    once, again = (solved(network, given, seed=4) for _ in range(2))
    for a, b in zip(once, again, strict=True):
        assert a.numbers == b.numbers
        assert a.outputs.tobytes() == b.outputs.tobytes()
    assert solved(network, given, seed=5)[-1].numbers["loss"] != once[-1].numbers["loss"]


def test_what_the_solver_calls_its_error_is_its_error() -> None:
    network, given = two("mssp", 0.5, 2), full_batch(LR, steps=3)
    fine = limit_of(passes, network, given, sites=2**14, seeds=8)
    coarse = limit_of(passes, network, given, sites=512, seeds=16)
    exact = {name: Estimate(each.mean, 0 * each.error) for name, each in fine.items()}
    assert worst(deviations(coarse, fine)) < 5
    assert worst(deviations(exact, coarse)) < 5


def test_the_order_of_samples_is_nothing() -> None:
    network, given = two("mssp", 0.5, 2, activation="tanh"), full_batch(LR, outputs=2)
    order = np.array([2, 0, 1])
    batch = given.batches[0]
    other = replace(
        given, batches=(Batch(inputs=batch.inputs[order], targets=batch.targets[order]),) * len(given.batches)
    )
    # Other Gaussians are drawn, so that the two agree within their errors.
    assert worst(deviations(limit_of(passes, network, given), limit_of(passes, network, other))) < 5


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_larger_inputs_are_a_larger_first_layer(factor: float) -> None:
    network, given = two("mssp", 0.5, 2, activation="tanh", **CONSTANTS), changing(0.06)
    other = scaled(network, "embedding", std=1 / factor, rate=1 / factor**2)
    same(solved(network, given), solved(other, moved(given, factor)))


def test_a_forward_multiplier_folds_into_std_and_lr() -> None:
    # 1/K with K = M/4 is 1/M with the multiplier 4: 1/4 of the std and 1/16 of the LR undo it.
    network, given = FINITE["MSSP, top-k of a quarter"]
    other = replace(scaled(network, "expert_out", std=1 / 4, rate=1 / 16), aggregation="1/K")
    same(solved(network, given), solved(other, given))


def test_temperature_folds_into_the_router() -> None:
    network, given = two("mssp", 0.5, 2, inverse_temperature=2.0), full_batch(LR)
    other = replace(scaled(network, "router", std=2.0, rate=4.0), inverse_temperature=1.0)
    a, b = solved(network, given), solved(other, given)
    for one, two_ in zip(a, b, strict=True):
        assert two_.numbers["loss"] == pytest.approx(one.numbers["loss"], abs=1e-9)
        assert two_.numbers["logit_variance"] == pytest.approx(4 * one.numbers["logit_variance"], rel=1e-9)


def test_a_repeated_batch_is_the_same_batch() -> None:
    network, given = two("mup", 0.5, 2, activation="tanh"), full_batch(LR)
    batch = given.batches[0]
    twice = Batch(inputs=np.tile(batch.inputs, (2, 1)), targets=np.tile(batch.targets, (2, 1)))
    other = limit_of(passes, network, replace(given, batches=(twice,) * len(given.batches)))
    assert worst(deviations(limit_of(passes, network, given), other)) < 5


def solved(network: Network, given: Given, *, sites: int = 1024, seed: int = 0) -> list[Pass]:
    return passes(network, given, sites=sites, seed=seed)


def scaled(network: Network, role: Any, *, std: float, rate: float) -> Network:
    """Return the network whose role has other constants."""
    return replace(
        network,
        init_mult={**network.init_mult, role: std * network.std(role)},
        lr_mult={**network.lr_mult, role: rate * network.rate(role)},
    )


def moved(given: Given, factor: float) -> Given:
    return replace(given, batches=tuple(replace(batch, inputs=factor * batch.inputs) for batch in given.batches))


def same(a: list[Pass], b: list[Pass]) -> None:
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(other.outputs, one.outputs, rtol=0, atol=1e-8)
        assert other.numbers == pytest.approx(one.numbers, abs=1e-8)
