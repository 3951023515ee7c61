"""The six tables of MSSP against Tables B.1 (SGD) and B.2 (Adam) of its source, row by row.

Target over base: width N, depth L, experts M, active experts K, expert width NE. All of them move at once here, off
any regime's own path, so that no two factors can stand in for each other.
"""

from __future__ import annotations

import pytest

from hpxfer.scaling.evaluate import evaluate, parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column

BASE = Shape(width=32, depth=2, num_experts=4, num_active=2, expert_width=32, head_dim=32, dense_width=128)
TARGET = Shape(width=128, depth=6, num_experts=20, num_active=14, expert_width=64, head_dim=32, dense_width=512)
N, L, M, K, NE = 4.0, 3.0, 5.0, 7.0, 2.0
FAMILIES = pytest.mark.parametrize("family", ["mup", "mssp"])
REGIMES = pytest.mark.parametrize("regime", ["i", "ii", "iii"])

# Regime -> router, expert in, expert out.
ADAM_EPS = {
    "i": (1 / L, 1 / (N * L), 1 / (N * L)),
    "ii": (1 / (M * L), 1 / (M * L), 1 / (N * M * L)),
    "iii": (1 / (M * L), 1 / (N * M * L), 1 / (N * M * L)),
}
SGD_LR = {"i": (1 / N, 1, 1), "ii": (M / N, M / N, M * N), "iii": (1, M, M)}
INIT = {
    "mup-i": (1 / N, N**-0.5, NE**-0.5),
    "mssp-i": (0, N**-0.5, NE**-0.5),
    "mup-ii": (N**-0.5, N**-0.5, NE**-0.5),
    "mssp-ii": (N**-0.5, N**-0.5, M**0.5 * NE**-0.5),
    "mup-iii": (N**-0.5, N**-0.5, NE**-0.5),
    "mssp-iii": (N**-0.5, N**-0.5, NE**-0.5),  # and all experts start alike
}
DENSE = ("attn_q", "attn_k", "attn_v", "dense_in", "dense_gate")


def expected(name: str, optimizer: Column) -> dict[str, tuple[float, ...]]:
    """Return role -> init std, LR, eps, weight decay, forward. Decay: the inverse of the LR's factor."""
    regime, adam = name.partition("-")[2], optimizer == "adam"
    vector, matrix = (1, 1 / N) if adam else (N, 1)
    hidden = (N**-0.5, matrix, 1 / (N * L), 1 / matrix)
    rates = (1 / N, 1 / N, 1 / NE) if adam else SGD_LR[regime]
    router, up, down = (
        (std, lr, eps, 1 / lr) for std, lr, eps in zip(INIT[name], rates, ADAM_EPS[regime], strict=True)
    )
    return {
        "embedding": (1, vector, 1 / N, 1 / vector, 1),
        "position": (1, vector, 1 / N, 0, 1),
        "norm": (1, vector, 1 / (N * L), 0, 1),
        "final_norm": (1, vector, 1 / N, 0, 1),
        "hidden_bias": (0, vector, 1 / (N * L), 0, 1),
        **dict.fromkeys(DENSE, (*hidden, 1)),
        "attn_out": (*hidden, 1 / L),
        "dense_out": (*hidden, 1 / L),
        "router": (*router, 1),
        "router_bias": (0, 1, 1, 0, 1),
        "expert_in": (*up, 1),
        "expert_gate": (*up, 1),
        "expert_out": (*down, 1 / (L * K)),
        "readout": (1 / N, 1 / N, 1, N, 1),
    }


@FAMILIES
@REGIMES
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_every_row(family: str, regime: str, optimizer: Column) -> None:
    name = f"{family}-{regime}"
    got, rows = evaluate(parameterization(name), BASE, TARGET, optimizer), expected(name, optimizer)
    assert got.keys() == rows.keys()
    for role, numbers in got.items():
        eps = numbers.eps if optimizer == "adam" else rows[role][2]  # SGD has none
        assert (numbers.init_std, numbers.lr, eps, numbers.weight_decay, numbers.forward) == pytest.approx(
            rows[role], rel=1e-12
        ), role
