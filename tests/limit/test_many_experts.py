"""Regimes II and III: the solvers against finite networks, closed forms, their own error, and planted errors.

No one network shows every error, so each error names the reference that shows it. A reference is a network with
constants that make one of its parts learn fast. A search over random constants found them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from agreement import Estimate, deviations, finite, limit_of, worst
from fixture_types import Patch
from limit_cases import CONSTANTS, ZERO_READOUT, changing, full_batch, same, scaled, three, two, with_batches
from scipy.integrate import quad
from scipy.special import expit, ndtri
from scipy.stats import norm

from hpxfer.limit import Given, Network, layers, many_experts, matrix, solve
from hpxfer.limit.layers import Pass
from hpxfer.limit.matrix import Lazy, Trained, Untied

LR = 0.12
Plant = Callable[[Patch], None]


def tuned(network: Network, lr: float, stds: str, rates: str) -> tuple[Network, Given]:
    """Return a network with init_mult and lr_mult of embedding, router, expert_in, expert_out and readout."""
    roles = ("embedding", "router", "expert_in", "expert_out", "readout")
    init, lrs = (dict(zip(roles, map(float, text.split()), strict=True)) for text in (stds, rates))
    return replace(network, init_mult=init, lr_mult=lrs), full_batch(lr)  # type: ignore[arg-type]


TANH: dict[str, Any] = {"activation": "tanh"}
SMALL = three("mssp", 0.25, 0.25)
REFERENCES: dict[str, tuple[Network, Given]] = {
    "II": (two("mssp", 0.5, 2), full_batch(LR)),
    "II muP": (two("mup", 0.5, 2), full_batch(LR)),
    "II, large down projection": tuned(
        two("mssp", 1, 2, **TANH), 0.21, "0.46 0.61 0.88 3.4 0.11", "1.37 1.76 1.57 0.43 0.99"
    ),
    "II, fast router": tuned(
        two("mssp", 0.25, 2, **TANH), 0.28, "0.45 0.89 0.84 0.85 0.33", "2.51 33.83 2.89 0.11 3.1"
    ),
    "II, fast experts": tuned(two("mssp", 1, 1), 0.12, "0.73 1.7 0.47 1.91 0.53", "0.63 34.75 3.55 0.37 1.38"),
    "II, fast readout": tuned(two("mssp", 1, 2, **TANH), 0.28, "0.37 2.72 1.08 0.35 1.73", "0.39 1.26 1.33 0.82 3.77"),
    "II, large router": tuned(two("mssp", 1, 2), 0.27, "0.51 2.65 0.7 0.5 0.98", "0.62 1.05 0.7 0.31 0.68"),
    "III": (SMALL, full_batch(LR)),
    "III, no readout at first": (replace(SMALL, **ZERO_READOUT), full_batch(LR)),
    "III, large readout": tuned(SMALL, 0.27, "0.37 1.38 1.78 0.31 1.9", "0.27 3.97 2.26 0.16 0.63"),
    "III, fast router": tuned(SMALL, 0.09, "0.51 0.77 1.87 1.7 0.49", "0.31 15.49 0.56 0.29 1.04"),
    "III, fast experts": tuned(SMALL, 0.08, "0.32 0.66 0.32 2.83 0.31", "0.89 9.29 5.99 0.04 1.65"),
    "III muP": (three("mup", 0.25, 0.25), full_batch(LR)),
    "III muP, large readout": tuned(
        three("mup", 0.25, 0.25), 0.05, "1.43 1.25 1.81 0.34 2.26", "0.9 8.08 0.54 1.4 0.31"
    ),
}
QUARTER: dict[str, Any] = {"active_share": 0.25, "aggregation": "1/K"}
# Networks in which no error is planted: activations, top-K, new batches, other losses.
OTHERS: dict[str, tuple[Network, Given]] = {
    "II, no readout at first": (two("mssp", 0.5, 2, **ZERO_READOUT), full_batch(LR)),
    "II, relu": (two("mssp", 1, 1, activation="relu"), full_batch(LR)),
    "II muP, gelu after relu": (two("mup", 0.5, 2, activation="gelu", input_activation="relu"), full_batch(LR)),
    "II, tanh everywhere": (two("mssp", 0.5, 2, activation="tanh", input_activation="tanh"), full_batch(LR)),
    "II, top-k of a quarter": (two("mssp", 0.5, 2, active_share=0.25), full_batch(LR)),
    "II muP, top-k of a half, 1/K, relu": (
        two("mup", 0.5, 2, active_share=0.5, aggregation="1/K", activation="relu"),
        full_batch(0.06),
    ),
    "II, constants, two outputs, new batches": (
        two("mssp", 0.5, 2, inverse_temperature=1.5, **CONSTANTS),
        changing(0.06, outputs=2),
    ),
    "II muP, cross entropy, new batches": (two("mup", 0.5, 2), changing(0.5, classes=3)),
    "III, other ratios": (three("mssp", 0.5, 0.125), full_batch(LR)),
    "III, top-k of a quarter, 1/K": (three("mssp", 0.25, 0.25, **QUARTER), full_batch(0.05)),
    "III muP, top-k of a quarter, 1/K": (three("mup", 0.25, 0.25, **QUARTER), full_batch(0.05)),
    "III, tanh of inputs": (three("mssp", 0.25, 0.25, input_activation="tanh"), full_batch(LR)),
    "III muP, gelu of inputs": (three("mup", 0.25, 0.25, input_activation="gelu"), full_batch(LR)),
    "III, constants, two outputs, new batches": (
        three("mssp", 0.25, 0.25, inverse_temperature=1.5, **CONSTANTS),
        changing(0.06, outputs=2),
    ),
    "III muP, constants, two outputs, new batches": (
        three("mup", 0.25, 0.25, **CONSTANTS),
        changing(0.06, outputs=2),
    ),
    "III, cross entropy, new batches": (three("mssp", 0.25, 0.25), changing(0.5, classes=3)),
}
ALL = REFERENCES | OTHERS


def solved(network: Network, given: Given, *, sites: int = 1024, seed: int = 0) -> list[Pass]:
    return many_experts.passes(network, given, sites=sites, seed=seed)


def limit(network: Network, given: Given, sites: int = 8192, seeds: int = 4) -> dict[str, Estimate]:
    return limit_of(many_experts.passes, network, given, sites=sites, seeds=seeds)


def z(name: str, network: Network, sites: int = 2048) -> float:
    """Return the largest deviation of the limit of `network` from the finite networks of a reference."""
    asked, given = ALL[name]
    wide = name in OTHERS and asked.regime == "II"
    seeds = 400 if name in REFERENCES and ", " in name else 200
    truth = finite(asked, given, (128, 256) if wide else (64, 128), seeds=seeds)
    return worst(deviations(limit(network, given, sites), truth))


@pytest.mark.first
@pytest.mark.parametrize("name", ALL)
def test_finite_networks_approach_the_limit(name: str) -> None:
    assert z(name, ALL[name][0], sites=2048 if name.startswith("III") else 8192) < 4


# Errors that are another network, as a wrong formula would make it.


def changed(**kinds: Any) -> Callable[[Network], Network]:
    """Return what gives a network other LRs of roles, by factors, or other properties."""
    roles = ("embedding", "router", "expert_in", "expert_out", "readout")

    def change(network: Network) -> Network:
        rates = {role: factor * network.rate(role) for role, factor in kinds.items() if role in roles}
        other = {name: value for name, value in kinds.items() if name not in roles}
        return replace(network, lr_mult={**network.lr_mult, **rates}, **other)

    return change


# What is wrong, the reference that shows it, the wrong network.
WRONG_NETWORKS = {
    "II: init of muP": ("II", changed(parameterization="mup")),
    "II: init of MSSP": ("II muP", changed(parameterization="mssp")),
    "III: untied": ("III", changed(parameterization="mup")),
    "III: tied": ("III muP", changed(parameterization="mssp")),
    "II: frozen router": ("II, fast router", changed(router=0.0)),
    "II: frozen up projection": ("II, fast experts", changed(expert_in=0.0)),
    "II: frozen down projection": ("II", changed(expert_out=0.0)),
    "II: K / D for K": ("II", changed(embedding=1 / 4)),
    "II: kappa for 1 in z1": ("II", changed(embedding=0.5)),
    "III: K / D for K": ("III", changed(embedding=1 / 4)),
    "III: frozen router": ("III, fast router", changed(router=0.0)),
    "III: frozen up projection": ("III, fast experts", changed(expert_in=0.0)),
    "III: frozen down projection": ("III, large readout", changed(expert_out=0.0)),
    "III muP: frozen down projection": ("III muP", changed(expert_out=0.0)),
}


@pytest.mark.first
@pytest.mark.parametrize("error", WRONG_NETWORKS)
def test_another_network_is_told_apart(error: str) -> None:
    reference, change = WRONG_NETWORKS[error]
    assert z(reference, change(REFERENCES[reference][0])) > 8


# Errors in a solver. Without them it agrees with the same references.


def nth(patch: Patch, name: str, place: int, other: Callable[..., Any]) -> None:
    """Let the solver make another thing the (place + 1)-th time that it makes one by this name, in every solve.

    A solve makes as many in every call, and the count starts anew with `passes`.
    """
    made, real, passes = [0], getattr(many_experts, name), many_experts.passes

    def make(*args: Any, **kinds: Any) -> Any:
        made[0] += 1
        return (other if made[0] - 1 == place else real)(*args, **kinds)

    def counted(*args: Any, **kinds: Any) -> Any:
        made[0] = 0
        return passes(*args, **kinds)

    patch.setattr(many_experts, name, make)
    patch.setattr(many_experts, "passes", counted)


def forgotten(name: str, place: int, other: type) -> Plant:
    """Return the error that a matrix has no update in one of its products."""
    return lambda patch: nth(patch, name, place, other)


def no_response(matrix: str, *, forward: bool) -> Plant:
    """Return the error that fresh directions of a matrix do not respond to what it did the other way."""

    class Deaf(Lazy):
        def _apply(self, known: Any, other: Any, x: Any, response: float, noise: float) -> Any:
            this = known is (self._known if forward else self._known_T)
            return super()._apply(known, other, x, 0.0 if this else response, noise)

    return lambda patch: nth(patch, "Lazy", MATRICES.index(matrix), Deaf)


class Silent(Untied):
    """Give back what the transpose of untied experts is: their mean response, here left out."""

    def transposed(self, y: Any) -> Any:
        return np.zeros((len(y), self._known.space.size))


class StartAlone(Trained):
    """A matrix whose product forward forgets what training added."""

    def forward(self, x: Any) -> Any:
        return self._draw(self.lazy.forward, x, self._target)


class StartAloneTransposed(Trained):
    def transposed(self, d: Any) -> Any:
        return self._draw(self.lazy.transposed, d, self._source)


# In the order in which the solvers make them.
MATRICES = ("router", "expert_in", "expert_out transposed")
WRONG_SOLVERS: dict[str, tuple[str, Plant]] = {
    **{
        f"II: no response {'forward' if forward else 'of the transpose'}, {matrix}": (
            "II, large router" if (matrix, forward) == ("expert_in", False) else "II, large down projection",
            no_response(matrix, forward=forward),
        )
        for matrix in MATRICES
        for forward in (True, False)
    },
    # Two transposes of III enter h1 alone, by the square of its LR: tied experts drown them in h1's own update.
    "III: no response forward, router": ("III", no_response("router", forward=True)),
    "III: no response forward, expert_in": ("III", no_response("expert_in", forward=True)),
    "III: no response forward, expert_out": ("III, fast router", no_response(MATRICES[2], forward=True)),
    "III: no response of the transpose, expert_out": ("III", no_response(MATRICES[2], forward=False)),
    "II: no update of Q in psi": ("II, fast router", forgotten("Trained", 0, StartAlone)),
    "II: no update of Q in z1": ("II, fast router", forgotten("Trained", 0, StartAloneTransposed)),
    "II: no update of W2 in h2": ("II, fast experts", forgotten("Trained", 1, StartAlone)),
    "II: no update of W2 in z1 (L.67 as printed)": ("II, fast experts", forgotten("Trained", 1, StartAloneTransposed)),
    "II: no update of W3 in u": ("II, fast readout", forgotten("Trained", 2, StartAlone)),
    "II: no update of W3 in h3": ("II, fast readout", forgotten("Trained", 2, StartAloneTransposed)),
    "III: no update of W2 in h2": ("III, fast experts", forgotten("Trained", 1, StartAlone)),
    "III: no update of W2 in z1": ("III, fast experts", forgotten("Trained", 1, StartAloneTransposed)),
    "III: no update of Q in psi": ("III, fast router", forgotten("Trained", 0, StartAlone)),
    "III: no update of Q in z1": ("III, fast router", forgotten("Trained", 0, StartAloneTransposed)),
    "III: no update of W3 in h3": ("III, large readout", forgotten("Trained", 2, StartAloneTransposed)),
    "III muP: no update of W2 in z1": ("III muP", forgotten("Trained", 1, StartAloneTransposed)),
    "III muP: no update of W3 in u": ("III muP, large readout", forgotten("Trained", 2, StartAlone)),
    "III muP: no mean over experts": ("III muP", lambda patch: patch.setattr(many_experts, "Untied", Silent)),
}


@pytest.mark.first
@pytest.mark.parametrize("error", WRONG_SOLVERS)
def test_a_wrong_solver_is_told_apart(error: str, monkeypatch: Patch) -> None:
    reference, plant = WRONG_SOLVERS[error]
    plant(monkeypatch)
    assert z(reference, REFERENCES[reference][0]) > 8


@pytest.mark.first
@pytest.mark.parametrize(
    ("of", "share"), [(two("mssp", 0.5, 2), 0.3), (three("mssp", 1, 0.5), 1 / 3), (two("mssp", 0.5, 2), 0.003)]
)
def test_any_share_of_experts_is_active(of: Network, share: float, monkeypatch: Patch) -> None:
    """Most shares are no whole number of sites. E phi is an integral above a quantile."""
    network, given = replace(of, active_share=share), full_batch(0.1, steps=0, samples=1)

    def z() -> float:
        found = solve(network, given, sites=2048, seeds=16)
        std, phi = math.sqrt(found.series["logit_variance"].mean[0]), found.series["gate_mean"]
        expected, _ = quad(lambda x: expit(std * x) * norm.pdf(x), -ndtri(share), 12, epsabs=1e-13)
        assert phi.error is not None
        return float(abs(phi.mean[0] - expected) / phi.error[0])

    assert z() < 5
    # The negative twin takes the nearest whole number of sites.
    monkeypatch.setattr(many_experts, "top_share", lambda psi, k: layers.largest(psi, round(k * psi.shape[1])))
    assert z() > 10


def test_nothing_is_said_before_the_first_update() -> None:
    for network, given in ALL.values():
        first = solved(network, replace(given, batches=given.batches[:1], lrs=()), sites=256)[0]
        np.testing.assert_allclose(first.outputs, 0, atol=1e-12)


def spread(name: str, sites: int) -> float:
    """Return the standard deviation of the final loss over the solver's seeds."""
    network, given = two("mssp", 0.5, 2) if name == "II" else three("mssp", 0.25, 0.25), full_batch(LR, steps=3)
    losses = [solved(network, given, sites=sites, seed=seed)[-1].numbers["loss"] for seed in range(16)]
    return float(np.std(losses, ddof=1))


class Plain:
    """Independent points in place of the Sobol sequence."""

    def __init__(self, columns: int, rng: np.random.Generator) -> None:
        self.columns, self.rng = columns, rng

    def random_base2(self, m: int) -> np.ndarray:
        return self.rng.random((2**m, self.columns))


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["II", "III"])
def test_the_error_falls_faster_than_that_of_plain_sampling(regime: str, monkeypatch: Patch) -> None:
    few, many = (spread(regime, sites) for sites in (256, 4096))
    assert many < few / 5  # 16 times the sites: a plain sample has a quarter of the error
    monkeypatch.setattr(matrix, "qmc", SimpleNamespace(Sobol=Plain))
    assert many < spread(regime, 4096) / 2


@pytest.mark.parametrize("name", ["II, top-k of a quarter", "III, top-k of a quarter, 1/K"])
def test_the_same_seed_gives_the_same_bits_and_another_does_not(name: str) -> None:
    once, again, other = (solved(*OTHERS[name], sites=256, seed=seed) for seed in (4, 4, 5))
    for a, b in zip(once, again, strict=True):
        assert a.numbers == b.numbers
        assert a.outputs.tobytes() == b.outputs.tobytes()
    assert other[-1].numbers["loss"] != once[-1].numbers["loss"]


@pytest.mark.slow
def test_what_the_solver_calls_its_error_is_its_error() -> None:
    network, given = two("mssp", 0.5, 2), full_batch(LR, steps=3)
    fine = limit(network, given, sites=2**14, seeds=8)
    coarse = limit(network, given, sites=512, seeds=16)
    exact = {name: Estimate(each.mean, 0 * each.error) for name, each in fine.items()}
    assert worst(deviations(coarse, fine)) < 5
    assert worst(deviations(exact, coarse)) < 5


@pytest.mark.slow
def test_the_order_of_samples_is_nothing() -> None:
    """Other Gaussians are drawn, so that the limits agree within their errors."""
    network, given = two("mssp", 0.5, 2, activation="tanh"), full_batch(LR, outputs=2)
    order = np.array([2, 0, 1])
    permuted = with_batches(given, lambda t, batch: (batch.inputs[order], batch.targets[order]))
    assert worst(deviations(limit(network, given), limit(network, permuted))) < 5


@pytest.mark.parametrize(
    "network", [two("mssp", 0.5, 2, activation="tanh", **CONSTANTS), three("mssp", 0.25, 0.5, **CONSTANTS)]
)
def test_larger_inputs_are_a_larger_first_layer(network: Network) -> None:
    given = changing(0.06)
    larger = with_batches(given, lambda t, batch: (4.0 * batch.inputs, batch.targets))
    other = scaled(network, "embedding", std=1 / 4, rate=1 / 16)
    same(solved(network, given, sites=256), solved(other, larger, sites=256), 1e-9)


def test_a_forward_multiplier_and_the_temperature_fold_into_std_and_lr() -> None:
    # 1/K with K = M/4 is 1/M with the multiplier 4: 1/4 of the std and 1/16 of the LR undo it.
    network, given = OTHERS["II, top-k of a quarter"]
    other = replace(scaled(network, "expert_out", std=1 / 4, rate=1 / 16), aggregation="1/K")
    same(solved(network, given), solved(other, given), 1e-8)
    network = two("mssp", 0.5, 2, inverse_temperature=2.0)
    other = replace(scaled(network, "router", std=2.0, rate=4.0), inverse_temperature=1.0)
    for a, b in zip(solved(network, given), solved(other, given), strict=True):
        assert b.numbers["loss"] == pytest.approx(a.numbers["loss"], abs=1e-9)
        assert b.numbers["logit_variance"] == pytest.approx(4 * a.numbers["logit_variance"], rel=1e-9)


def test_untied_experts_know_of_kappa_by_their_router_alone() -> None:
    # Table B.1: the router's LR is 1 in regime III, so its update has 1/kappa. Nothing else has if it starts at 0.
    def of(kappa: float, rate: float) -> list[Pass]:
        network = three("mup", kappa, 0.5, init_mult={"router": 0.0}, lr_mult={"router": rate})
        return solved(network, full_batch(LR), sites=64)

    for a, b, c in zip(of(0.25, 4 * 0.25), of(4.0, 4 * 4.0), of(4.0, 4 * 0.25), strict=True):
        assert b.numbers == pytest.approx(a.numbers, abs=1e-11)
        last = c.numbers["logit_mean"]
    assert abs(last - b.numbers["logit_mean"]) > 1e-3  # the twin without the factor
