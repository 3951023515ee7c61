"""`mup`: Tensor Programs V (arXiv 2203.03466), Table 3, by the shape of every matrix.

- Input-like weights (only fan-out is infinite) have init 1 and LR 1 (Adam) or fan-out (SGD).
- Hidden weights (both are infinite) have init fan-in^-1/2 and LR fan-in^-1 (Adam) or fan-out/fan-in (SGD).
- Output-like weights (only fan-in is infinite), the router among them, have init fan-in^-1 and LR fan-in^-1.

The source does not cover a growing number of experts.
"""

from __future__ import annotations

from hpxfer.scaling.conventions import (
    EMBEDDINGS,
    EPS,
    WEIGHT_DECAY,
    readout_convention,
    with_conditioning,
    with_eps,
    with_readout,
    with_weight_decay,
)
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, dense_width, expert_width, shared_width, width
from hpxfer.scaling.table import Column, Conventions, Row, Table

TABLE_3 = "2203.03466 Table 3"
OUTPUT = TABLE_3 + ", output weights"
EPS_SOURCE = "; eps as the gradient"
OUTPUT_LIKE = ("readout", "router")


def _vector(role: str, optimizer: Column) -> Row:
    """Return the row of a gain, bias or position: one infinite dimension, as an input weight, and no decay."""
    start = ZERO if role == "hidden_bias" else ONE
    lr = width if optimizer == "sgd" else ONE
    return Row(role=role, init_std=start, lr=lr, eps=width**-1, weight_decay=ZERO, source=TABLE_3 + EPS_SOURCE)


def _hidden(role: str, fan_in: Monomial, fan_out: Monomial, optimizer: Column) -> Row:
    lr = fan_out * fan_in**-1 if optimizer == "sgd" else fan_in**-1
    decay = lr**-1  # as in the package `mup`: LR times decay stays the same
    source = TABLE_3 + ", hidden weights" + EPS_SOURCE
    return Row(role=role, init_std=fan_in**-0.5, lr=lr, eps=fan_out**-1, weight_decay=decay, source=source)


def _output(role: str) -> Row:
    return Row(role=role, init_std=width**-1, lr=width**-1, weight_decay=width, source=OUTPUT)


def _rows(conventions: Conventions, optimizer: Column) -> tuple[Row, ...]:
    lr = width if optimizer == "sgd" else ONE
    rows: tuple[Row, ...] = (
        Row(
            role="embedding",
            lr=lr,
            eps=width**-1,
            weight_decay=lr**-1,
            source=TABLE_3 + ", input weights" + EPS_SOURCE,
        ),
        _vector("position", optimizer),
        _vector("norm", optimizer),
        _vector("final_norm", optimizer),
        _vector("hidden_bias", optimizer),
        _hidden("attn_q", width, width, optimizer),
        _hidden("attn_k", width, width, optimizer),
        _hidden("attn_v", width, width, optimizer),
        _hidden("attn_out", width, width, optimizer),
        _hidden("dense_in", width, dense_width, optimizer),
        _hidden("dense_gate", width, dense_width, optimizer),
        _hidden("dense_out", dense_width, width, optimizer),
        _output("router"),
        Row(role="router_bias", init_std=ZERO, weight_decay=ZERO, source="balancing rule, not the optimizer"),
        _hidden("expert_in", width, expert_width, optimizer),
        _hidden("expert_gate", width, expert_width, optimizer),
        _hidden("expert_out", expert_width, width, optimizer),
        _hidden("shared_in", width, shared_width, optimizer),
        _hidden("shared_gate", width, shared_width, optimizer),
        _hidden("shared_out", shared_width, width, optimizer),
        _output("readout"),
    )
    rows = with_readout(
        with_conditioning(rows), conventions, optimizer, forward=width**-1, written="init_lr", roles=OUTPUT_LIKE
    )
    return with_eps(with_weight_decay(rows, conventions), conventions, ONE)


MUP = Table(
    name="mup",
    source="arXiv 2203.03466",
    axes=("width",),
    # SGD's rule fan-out/fan-in does not cover a hidden layer that grows alone. While the width stays, the gradient by
    # the hidden features falls as their number^-1/2 (`hpxfer check --optimizer sgd --axis expert_width` misses).
    adam_axes=("expert_width", "dense_ratio"),
    rows={"adam": lambda conventions: _rows(conventions, "adam"), "sgd": lambda conventions: _rows(conventions, "sgd")},
    conventions={
        "readout": readout_convention("forward"),
        "embeddings": EMBEDDINGS,
        "weight_decay": WEIGHT_DECAY,
        "eps": EPS,
    },
    doc="muP by the shape of every matrix: width and expert width. The readout's convention holds for the router too.",
    limit="mup-i",
)
