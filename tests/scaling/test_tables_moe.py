"""The tables beside completep and sp against their sources, row by row, at a target where every dimension moves.

The letters are those of the sources: target over base of width N, depth L, experts M, active experts K, batch B. No
product of them is another, so that no two factors can stand in for each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from condition_rows import condition_rows

from hpxfer.scaling.evaluate import evaluate, evaluate_globals, parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column

BASE = Shape(
    width=32,
    depth=2,
    head_dim=32,
    batch_tokens=64,
    steps=100,
    dense_width=64,
    num_experts=4,
    num_active=2,
    expert_width=32,
    num_shared=1,
    shared_width=16,
)
JOINT = Shape(
    width=128,
    depth=6,
    head_dim=32,
    batch_tokens=96,
    steps=950,
    dense_width=1088,
    num_experts=20,
    num_active=14,
    expert_width=352,
    num_shared=1,
    shared_width=208,
)
N, L, M, K, B = 4.0, 3.0, 5.0, 7.0, 1.5
NE, S, D = 11.0, 13.0, 17.0  # widths of an expert, a shared expert and a dense FFN
TOKENS = 1.5 * 9.5
RHO = (208 + 14 * 352) / 128 / ((16 + 2 * 32) / 32)  # H_act / width, of the base's 2.5
RHO_DENSE = D / N
SGD: Column = "sgd"
ADAM: Column = "adam"
Rows = Mapping[str, tuple[float, ...]]  # role -> init std, LR, eps, weight decay, forward
BALANCING = (0, 1, 1, 0, 1)
ATTENTION = ("attn_q", "attn_k", "attn_v")
UP = ("expert_in", "expert_gate", "shared_in", "shared_gate", "dense_in", "dense_gate")


def check(name: str, optimizer: Column, expected: Rows, **conventions: float | str) -> None:
    got = evaluate(parameterization(name, conventions), BASE, JOINT, optimizer)
    assert got.keys() == expected.keys()
    for role, numbers in got.items():
        eps = numbers.eps if optimizer == "adam" else expected[role][2]  # SGD has none
        mine = (numbers.init_std, numbers.lr, eps, numbers.weight_decay, numbers.forward)
        assert mine == pytest.approx(expected[role], rel=1e-12), role


def test_complete_mue() -> None:
    """2605.23893: Table 2 for the layers, Table 3's sqrt(B/D) on LR and decay and its inverse on eps."""
    q = (B / TOKENS) ** 0.5
    hidden = (N**-0.5, q / N, 1 / (N * L * q), q)
    routed_and_shared = (N**-0.5 * RHO**0.5, *hidden[1:], 1 / (L * RHO))
    check(
        "complete-mue",
        ADAM,
        {
            "embedding": (1, q, 1 / (N * q), q, 1),
            "position": (1, q, 1 / (N * q), 0, 1),
            "norm": (1, q, 1 / (N * L * q), 0, 1),
            "final_norm": (1, q, 1 / (N * q), 0, 1),
            "hidden_bias": (0, q, 1 / (N * L * q), 0, 1),
            **dict.fromkeys((*ATTENTION, "router", *UP), (*hidden, 1)),
            "attn_out": (*hidden, 1 / L),
            "dense_out": (N**-0.5 * RHO_DENSE**0.5, *hidden[1:], 1 / (L * RHO_DENSE)),
            "expert_out": routed_and_shared,
            "shared_out": routed_and_shared,
            "router_bias": BALANCING,
            "readout": (1, q, 1 / (N * q), q, 1 / N),
            **condition_rows(
                inputs=(1, q, 1 / (N * q), q, 1),
                inside=(*hidden, 1),
                outside=(N**-0.5, q / N, 1 / (N * q), q, 1),
                bias=(0, q, 1 / (N * q), 0, 1),
            ),
        },
    )
    at = evaluate_globals(parameterization("complete-mue"), BASE, JOINT)
    assert (at.route_scale, at.one_minus_beta) == pytest.approx((K, B / TOKENS), rel=1e-12)


def hidden_by_shape(numbers: object) -> Rows:
    """Return role -> numbers(fan-in, fan-out) of every hidden matrix."""
    assert callable(numbers)
    return {
        **dict.fromkeys((*ATTENTION, "attn_out"), numbers(N, N)),
        **{f"{kind}_{end}": numbers(N, w) for kind, w in KINDS for end in ("in", "gate")},
        **{f"{kind}_out": numbers(w, N) for kind, w in KINDS},
    }


KINDS = (("expert", NE), ("shared", S), ("dense", D))


@pytest.mark.parametrize("form", ["forward", "init_lr"])
def test_ntp(form: str) -> None:
    """MSSP Table G.1: input 1 / 1, the rest fan-in^-1/2 / fan-in^-1; as a multiplier fan-in^-1/2 / 1 / 1."""
    hidden = (N**-0.5, 1 / N, 1, 1, 1)
    check(
        "ntp",
        SGD,
        {
            "embedding": (1, 1, 1, 1, 1),
            **dict.fromkeys(("position", "norm", "final_norm"), (1, 1, 1, 0, 1)),
            "hidden_bias": (0, 1, 1, 0, 1),
            **hidden_by_shape(lambda fan_in, fan_out: (fan_in**-0.5, 1 / fan_in, 1, 1, 1)),
            "router": (N**-0.5, 1 / N, 1, 1, 1),
            "readout": (1, 1, 1, 1 / N, N**-0.5) if form == "forward" else (N**-0.5, 1 / N, 1, 1, 1),
            "router_bias": BALANCING,
            **condition_rows((1, 1, 1, 1, 1), hidden, hidden, BALANCING),
        },
        readout=form,
    )


VARIANTS: list[dict[str, float | str]] = [
    {},
    {"router_init": "zero"},
    {"readout_init": "zero"},
    {"router_eps_exponent": 0.5},
    {"router_bias_std": 0.7},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("optimizer", [ADAM, SGD])
def test_mup_moe(optimizer: Column, variant: dict[str, float | str]) -> None:
    """Why Routers Freeze Tables 1 (SGD) and 2 (Adam); other tensors by class; no word on weight decay."""
    vector_lr = N if optimizer == "sgd" else 1
    hidden = (N**-0.5, 1 if optimizer == "sgd" else 1 / N, 1 / N, 1, 1)
    router = (0 if "router_init" in variant else 1 / N, 1 / N, N**-0.5 if "router_eps_exponent" in variant else 1, 1, 1)
    check(
        "mup-moe",
        optimizer,
        {
            "embedding": (1, vector_lr, 1 / N, 1, 1),
            **dict.fromkeys(("position", "norm", "final_norm"), (1, vector_lr, 1 / N, 0, 1)),
            "hidden_bias": (0, vector_lr, 1 / N, 0, 1),
            **hidden_by_shape(
                lambda fan_in, fan_out: (fan_in**-0.5, 1 if optimizer == "sgd" else 1 / fan_in, 1 / N, 1, 1)
            ),
            "router": router,
            "readout": (0 if "readout_init" in variant else 1 / N, 1 / N, 1, 1, 1),
            "router_bias": BALANCING,
            **condition_rows((1, vector_lr, 1 / N, 1, 1), hidden, hidden, bias=(0, vector_lr, 1 / N, 0, 1)),
        },
        **variant,
    )
    std = parameterization("mup-moe", variant).structure().router_bias_std
    assert std == variant.get("router_bias_std", 0)
