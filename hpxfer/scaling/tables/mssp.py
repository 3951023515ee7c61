"""`mup-i`, `mup-ii`, `mup-iii` and `mssp-i`, `mssp-ii`, `mssp-iii`: MSSP (HiLD 2026), Tables B.1 (SGD) and B.2 (Adam).

A model may grow in three regimes: I in width and expert width, II in width and experts, III in all of them. LR and eps
depend on the regime. MSSP differs from muP only in the initialization: in regime I the router starts from zero, in
regime II the experts' output matrices are larger by experts^1/2, in regime III all experts start from the same draw.
The model averages over the active experts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hpxfer.scaling.conventions import (
    EMBEDDINGS,
    EPS,
    ROUTER_BIAS_STD,
    WEIGHT_DECAY,
    init_convention,
    readout_convention,
    with_eps,
    with_readout,
    with_weight_decay,
)
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, active, depth, expert_width, experts, width
from hpxfer.scaling.table import Column, Conventions, Regime, Row, Table

TABLE: dict[Column, str] = {"sgd": "MSSP Table B.1", "adam": "MSSP Table B.2"}
BRANCH = depth**-1

# Regime -> (router, expert in, expert out): gradient RMS. Times depth^-1 it is the eps inside a block.
GRADIENT = {
    "I": (ONE, width**-1, width**-1),
    "II": (experts**-1, experts**-1, width**-1 * experts**-1),
    "III": (experts**-1, width**-1 * experts**-1, width**-1 * experts**-1),
}
# Regime -> (router, expert in, expert out): LR under SGD.
SGD_LR = {
    "I": (width**-1, ONE, ONE),
    "II": (experts * width**-1, experts * width**-1, experts * width),
    "III": (ONE, experts, experts),
}
ADAM_LR = (width**-1, width**-1, expert_width**-1)


def _dense(optimizer: Column) -> tuple[Row, ...]:
    """Return the rows outside the MoE layer: muP with a factor 1/depth on every branch."""
    source = TABLE[optimizer]
    vector_lr = width if optimizer == "sgd" else ONE
    outer = {"lr": vector_lr, "eps": width**-1}
    inner = {"lr": vector_lr, "eps": width**-1 * BRANCH, "weight_decay": ZERO}
    hidden = {
        "init_std": width**-0.5,
        "lr": ONE if optimizer == "sgd" else width**-1,
        "eps": width**-1 * BRANCH,
        "weight_decay": ONE if optimizer == "sgd" else width,
    }
    return (
        Row(role="embedding", **outer, weight_decay=vector_lr**-1, source=source),
        Row(role="position", **outer, weight_decay=ZERO, source=source),
        Row(role="norm", **inner, source=source),
        Row(role="final_norm", **outer, weight_decay=ZERO, source=source),
        Row(role="hidden_bias", init_std=ZERO, **inner, source=source),
        Row(role="attn_q", **hidden, source=source),
        Row(role="attn_k", **hidden, source=source),
        Row(role="attn_v", **hidden, source=source),
        Row(role="attn_out", **hidden, forward=BRANCH, source=source),
        Row(role="dense_in", **hidden, source=source),
        Row(role="dense_gate", **hidden, source=source),
        Row(role="dense_out", **hidden, forward=BRANCH, source=source),
        Row(role="readout", init_std=width**-1, lr=width**-1, weight_decay=width, source=source),
    )


def _rows(conventions: Conventions, optimizer: Column, *, regime: str, mssp: bool) -> tuple[Row, ...]:
    source = f"{TABLE[optimizer]}, regime {regime}"
    lr = ADAM_LR if optimizer == "adam" else SGD_LR[regime]
    router, up, down = (
        {"lr": lr[i], "eps": GRADIENT[regime][i] * BRANCH, "weight_decay": lr[i] ** -1} for i in range(3)
    )
    no_gate = "as expert_in: the source has no gate matrix"
    rows: tuple[Row, ...] = (
        *_dense(optimizer),
        Row(role="router", init_std=_router_std(regime, mssp=mssp), **router, source=source),
        Row(role="router_bias", init_std=ZERO, weight_decay=ZERO, source="balancing rule, not the optimizer"),
        Row(role="expert_in", init_std=width**-0.5, **up, source=source),
        Row(role="expert_gate", init_std=width**-0.5, **up, source=no_gate),
        Row(
            role="expert_out",
            init_std=_out_std(regime, mssp=mssp),
            **down,
            forward=BRANCH * active**-1,
            source=source,
        ),
    )
    rows = with_readout(rows, conventions, optimizer, forward=width**-1, written="init_lr")
    if conventions["readout_init"] == "zero":
        rows = tuple(replace(row, init_std=ZERO) if row.role == "readout" else row for row in rows)
    return with_eps(with_weight_decay(rows, conventions), conventions, ONE)


def _router_std(regime: str, *, mssp: bool) -> Monomial:
    if regime == "I":
        return ZERO if mssp else width**-1
    return width**-0.5


def _out_std(regime: str, *, mssp: bool) -> Monomial:
    boost = experts**0.5 if mssp and regime == "II" else ONE
    return boost * expert_width**-0.5


def _table(regime: Regime, *, mssp: bool) -> Table:
    axes, grows = REGIME_AXES[regime]
    what = "maximal scale stability" if mssp else "maximal updates"
    rows = partial(_rows, regime=regime, mssp=mssp)
    bias = {"router_bias_std": ROUTER_BIAS_STD} if regime == "I" else {}
    return Table(
        name=f"{'mssp' if mssp else 'mup'}-{regime.lower()}",
        source="MSSP (HiLD 2026)",
        axes=axes,
        adam_axes=("depth",),
        regime=regime,
        rows={"adam": partial(rows, optimizer="adam"), "sgd": partial(rows, optimizer="sgd")},
        conventions={
            "readout_init": init_convention("readout"),
            **bias,
            "readout": readout_convention("init_lr"),
            "embeddings": EMBEDDINGS,
            "weight_decay": WEIGHT_DECAY,
            "eps": EPS,
        },
        route_scale=active,  # "no explicit factor for softmax gates"; sigmoid gates have 1/active
        tied_experts=mssp and regime == "III",
        doc=f"Regime {regime}, {grows}; {what}.",
        limit=f"{'mssp' if mssp else 'mup'}-{regime.lower()}",
    )


REGIME_AXES: dict[Regime, tuple[tuple[str, ...], str]] = {
    "I": (("width", "expert_width"), "width and expert width grow together"),
    "II": (("width", "experts", "active"), "width and experts grow together, expert width fixed"),
    "III": (("width", "expert_width", "experts", "active"), "width, expert width and experts grow together"),
}

MUP_I, MUP_II, MUP_III = (_table(regime, mssp=False) for regime in REGIME_AXES)
MSSP_I, MSSP_II, MSSP_III = (_table(regime, mssp=True) for regime in REGIME_AXES)
