"""Negative twins: a solver with an error planted in it is told from finite networks, and without it is not.

No one network shows every error, so each error names the reference that shows it. A reference is a network with
constants that make one of its parts learn fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from agreement import Estimate, deviations, finite, limit_of, worst
from limit_cases import ZERO_READOUT, full_batch, three, two
from planted import (
    MATRICES,
    ExpertsStartAlone,
    ExpertsStartAloneTransposed,
    StartAlone,
    StartAloneTransposed,
    no_response,
    no_response_of_untied,
    nth,
)

from hpxfer.limit import Given, Network, all_grow, fixed_width

PLAIN_LR = 0.12
Plant = Callable[[pytest.MonkeyPatch, Any], None]


def constants(stds: str, rates: str) -> dict[str, Any]:
    """Return init_mult and lr_mult of embedding, router, expert_in, expert_out and readout."""
    roles = ("embedding", "router", "expert_in", "expert_out", "readout")
    init, lr = (dict(zip(roles, map(float, text.split()), strict=True)) for text in (stds, rates))
    return {"init_mult": init, "lr_mult": lr}


REFERENCES: dict[str, tuple[Network, Given]] = {
    "II": (two("mssp", 0.5, 2), full_batch(PLAIN_LR)),
    "II muP": (two("mup", 0.5, 2), full_batch(PLAIN_LR)),
    "II, large down projection": (
        two("mssp", 1, 2, activation="tanh", **constants("0.46 0.61 0.88 3.4 0.11", "1.37 1.76 1.57 0.43 0.99")),
        full_batch(0.21),
    ),
    "II, fast router": (
        two("mssp", 0.25, 2, activation="tanh", **constants("0.45 0.89 0.84 0.85 0.33", "2.51 33.83 2.89 0.11 3.1")),
        full_batch(0.28),
    ),
    "II, fast experts": (
        two("mssp", 1, 1, **constants("0.73 1.7 0.47 1.91 0.53", "0.63 34.75 3.55 0.37 1.38")),
        full_batch(0.12),
    ),
    "II, fast readout": (
        two("mssp", 1, 2, activation="tanh", **constants("0.37 2.72 1.08 0.35 1.73", "0.39 1.26 1.33 0.82 3.77")),
        full_batch(0.28),
    ),
    "III": (three("mssp", 0.25, 0.25), full_batch(PLAIN_LR)),
    "III, no readout at first": (three("mssp", 0.25, 0.25, **ZERO_READOUT), full_batch(PLAIN_LR)),
    "III muP": (three("mup", 0.25, 0.25), full_batch(PLAIN_LR)),
}


def changed(**kinds: Any) -> Callable[[Network], Network]:
    """Return what gives a network other constants: an error that a wrong formula would make."""

    def change(network: Network) -> Network:
        rates = {role: factor * network.rate(role) for role, factor in kinds.items() if role in MATRIX_ROLES}
        other = {name: value for name, value in kinds.items() if name not in MATRIX_ROLES}
        return replace(network, lr_mult={**network.lr_mult, **rates}, **other)

    return change


MATRIX_ROLES: tuple[Any, ...] = ("embedding", "router", "expert_in", "expert_out", "readout")

# Errors that are another network: what is wrong, the reference that shows it, the wrong network.
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
    "III: frozen up projection": ("III", changed(expert_in=0.0)),
    "III: frozen down projection": ("III", changed(expert_out=0.0)),
    "III muP: frozen down projection": ("III muP", changed(expert_out=0.0)),
}


def responses() -> dict[str, tuple[str, Plant]]:
    """Return the six responses of regime II, and those of III."""
    out: dict[str, tuple[str, Plant]] = {}
    for matrix in MATRICES:
        for forward in (True, False):

            def plant(patch: pytest.MonkeyPatch, module: Any, matrix: str = matrix, forward: bool = forward) -> None:
                no_response(patch, module, matrix, forward=forward)

            way = "forward" if forward else "of the transpose"
            reference = "II" if (matrix, forward) == ("expert_in", False) else "II, large down projection"
            out[f"II: no response {way}, {matrix}"] = (reference, plant)
            out[f"III: no response {way}, {matrix}"] = ("III", plant)
    return out


def forgotten(name: str, place: int, other: type) -> Plant:
    """Return the error that a matrix has no update in one of its products."""
    return lambda patch, module: nth(patch, module, name, place, other)


WRONG_SOLVERS: dict[str, tuple[str, Plant]] = {
    **responses(),
    "II: no update of Q in psi": ("II, fast router", forgotten("Trained", 0, StartAlone)),
    "II: no update of Q in z1": ("II, fast router", forgotten("Trained", 0, StartAloneTransposed)),
    "II: no update of W2 in h2": ("II, fast experts", forgotten("Trained", 1, StartAlone)),
    "II: no update of W2 in z1 (L.67 as printed)": ("II, fast experts", forgotten("Trained", 1, StartAloneTransposed)),
    "II: no update of W3 in u": ("II, fast readout", forgotten("Trained", 2, StartAlone)),
    "II: no update of W3 in h3": ("II, fast readout", forgotten("Trained", 2, StartAloneTransposed)),
    "III: no update of W2 in h2": ("III", forgotten("_OfExperts", 0, ExpertsStartAlone)),
    "III: no update of W2 in z1 (Gbar_in)": ("III", forgotten("_OfExperts", 0, ExpertsStartAloneTransposed)),
    "III: no update of W3 in u": ("III", forgotten("_OfExperts", 1, ExpertsStartAlone)),
    "III: no update of W3 in h3": ("III", forgotten("_OfExperts", 1, ExpertsStartAloneTransposed)),
    "III muP: no update of W2 in z1 (Gbar_in)": ("III muP", forgotten("_OfExperts", 0, ExpertsStartAloneTransposed)),
    "III muP: no update of W3 in u": ("III muP", forgotten("_OfExperts", 1, ExpertsStartAlone)),
    "III muP: no mean over experts": ("III muP", no_response_of_untied),
}


def module_of(reference: str) -> Any:
    return all_grow if REFERENCES[reference][0].regime == "III" else fixed_width


@cache
def truth(reference: str) -> dict[str, Estimate]:
    """Return what finite networks say of a reference's limit."""
    return finite(*REFERENCES[reference], (64, 128), seeds=400 if reference.startswith("II,") else 200)


def z(reference: str, network: Network, sites: int = 2048) -> float:
    """Return the largest deviation of the limit of `network` from the finite networks of a reference."""
    given = REFERENCES[reference][1]
    return worst(deviations(limit_of(module_of(reference).passes, network, given, sites=sites), truth(reference)))


@pytest.mark.parametrize("reference", REFERENCES)
def test_the_solver_agrees_with_its_references(reference: str) -> None:
    assert z(reference, REFERENCES[reference][0], sites=8192 if reference.startswith("II,") else 2048) < 4


@pytest.mark.parametrize("error", WRONG_NETWORKS)
def test_another_network_is_told_apart(error: str) -> None:
    reference, change = WRONG_NETWORKS[error]
    assert z(reference, change(REFERENCES[reference][0])) > 8


@pytest.mark.parametrize("error", WRONG_SOLVERS)
def test_a_wrong_solver_is_told_apart(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, plant = WRONG_SOLVERS[error]
    plant(monkeypatch, module_of(reference))
    assert z(reference, REFERENCES[reference][0]) > 8
