"""`mup-moe`: "Why Routers Freeze" (HiLD 2026), Tables 1 (SGD) and 2 (Adam): width, at a fixed number of experts.

The source has rows for an input, a router, experts and an output. The other tensors of a transformer follow by class:
gains, biases and embeddings are like the input, all width x width matrices like an expert, the readout like the output.
The source has no forward multipliers, so the readout is scaled by init and LR.
"""

from __future__ import annotations

from dataclasses import replace

from hpxfer.scaling.conventions import (
    EMBEDDINGS,
    EPS,
    ROUTER_BIAS_STD,
    WEIGHT_DECAY,
    init_convention,
    readout_convention,
    with_conditioning,
    with_eps,
    with_readout,
    with_weight_decay,
)
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, dense_width, expert_width, shared_width, width
from hpxfer.scaling.muon import with_muon
from hpxfer.scaling.table import Column, Convention, Conventions, Row, Table

TABLE: dict[Column, str] = {"sgd": "Why Routers Freeze Table 1", "adam": "Why Routers Freeze Table 2"}
BY_CLASS = " by class"

ROUTER_EPS_EXPONENT = Convention(
    default=0.0,
    legal=(0.0, 0.5),
    doc="d in the router's eps width^-d; 1/2 keeps Adam's scaling benign under a soft softmax gate (Remark 27)",
)


def _input(role: str, optimizer: Column) -> Row:
    vector = role != "embedding"
    return Row(
        role=role,
        init_std=ZERO if role == "hidden_bias" else ONE,
        lr=width if optimizer == "sgd" else ONE,
        eps=width**-1,
        weight_decay=ZERO if vector else ONE,
        source=TABLE[optimizer] + (BY_CLASS if vector else ", W1"),
    )


def _matrix(role: str, optimizer: Column, fan_in: Monomial = width, where: str = BY_CLASS) -> Row:
    lr = ONE if optimizer == "sgd" else fan_in**-1
    return Row(role=role, init_std=fan_in**-0.5, lr=lr, eps=width**-1, source=TABLE[optimizer] + where)


def _output(role: str, optimizer: Column, where: str) -> Row:
    return Row(role=role, init_std=width**-1, lr=width**-1, source=TABLE[optimizer] + where)


def _rows(conventions: Conventions, optimizer: Column) -> tuple[Row, ...]:
    rows: tuple[Row, ...] = (
        _input("embedding", optimizer),
        _input("position", optimizer),
        _input("norm", optimizer),
        _input("final_norm", optimizer),
        _input("hidden_bias", optimizer),
        _matrix("attn_q", optimizer),
        _matrix("attn_k", optimizer),
        _matrix("attn_v", optimizer),
        _matrix("attn_out", optimizer),
        _matrix("dense_in", optimizer),
        _matrix("dense_gate", optimizer),
        _matrix("dense_out", optimizer, dense_width),
        replace(_output("router", optimizer, ", W2"), eps=width ** -float(conventions["router_eps_exponent"])),
        Row(role="router_bias", init_std=ZERO, weight_decay=ZERO, source=TABLE[optimizer] + ", b2: constant LR"),
        _matrix("expert_in", optimizer, where=", W3"),
        _matrix("expert_gate", optimizer, where=", W3"),
        _matrix("expert_out", optimizer, expert_width, ", W3"),
        _matrix("shared_in", optimizer),
        _matrix("shared_gate", optimizer),
        _matrix("shared_out", optimizer, shared_width),
        _output("readout", optimizer, ", W4"),
    )
    rows = with_readout(with_conditioning(rows), conventions, optimizer, forward=width**-1, written="init_lr")
    zeros = [role for role in ("router", "readout") if conventions[f"{role}_init"] == "zero"]
    rows = tuple(replace(row, init_std=ZERO) if row.role in zeros else row for row in rows)
    return with_eps(with_weight_decay(rows, conventions), conventions, ONE)


MUP_MOE = Table(
    name="mup-moe",
    source="Why Routers Freeze (HiLD 2026)",
    axes=("width",),
    fixed={
        "num_experts": "the source's limit holds the number of experts and does not commute with a growing one",
        "num_active": "the source's limit holds the number of active experts",
    },
    rows={
        **with_muon(lambda conventions: _rows(conventions, "adam")),
        "sgd": lambda conventions: _rows(conventions, "sgd"),
    },
    conventions={
        "router_init": init_convention("router"),
        "readout_init": init_convention("readout"),
        "router_eps_exponent": ROUTER_EPS_EXPONENT,
        "router_bias_std": ROUTER_BIAS_STD,
        "readout": readout_convention("init_lr"),
        "embeddings": EMBEDDINGS,
        "weight_decay": WEIGHT_DECAY,
        "eps": EPS,
    },
    constant_decay=True,
    doc="muP for MoE models: width at a fixed number of experts; its variants are conventions.",
    limit="mup-i",
)
