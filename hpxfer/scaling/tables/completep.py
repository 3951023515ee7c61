"""`completep`: the dense rows of CompleteP (arXiv 2505.01618, Table 1), for width and depth, with Adam."""

from __future__ import annotations

from hpxfer.scaling.conventions import (
    DEPTH_LR,
    EMBEDDINGS,
    EPS,
    WEIGHT_DECAY,
    readout_convention,
    with_conditioning,
    with_eps,
    with_readout,
    with_weight_decay,
)
from hpxfer.scaling.monomial import ONE, ZERO, depth, width
from hpxfer.scaling.muon import with_muon
from hpxfer.scaling.table import ByDesign, Convention, Conventions, Row, Table

TABLE_1 = "2505.01618 Table 1"

DEPTH_ALPHA = Convention(
    default=1.0,
    legal=("between", 0.5, 1.0),
    doc="residual branches get depth^-alpha, the LR inside them depth^(alpha-1); 1 is CompleteP",
)
LAZY = "2505.01618, lazy learning below alpha = 1"
# Matrices that read the stream.
INSIDE = (
    *("attn_q", "attn_k", "attn_v", "dense_in", "dense_gate", "router", "expert_in", "expert_gate"),
    *("shared_in", "shared_gate", "modulation"),
)
VECTORS = ("norm", "hidden_bias")
CONVENTIONS = {
    "depth_alpha": DEPTH_ALPHA,
    "depth_lr": DEPTH_LR,
    "readout": readout_convention("forward"),
    "embeddings": EMBEDDINGS,
    "weight_decay": WEIGHT_DECAY,
    "eps": EPS,
}


def dense_rows(conventions: Conventions) -> tuple[Row, ...]:
    """Return the rows of everything outside the MoE layer, in the source's form."""
    alpha = float(conventions["depth_alpha"])
    branch = depth**-alpha  # residual multiplier
    lr = depth ** (alpha - 1)  # 1 at alpha = 1
    vector_lr = ONE if conventions["depth_lr"] == "matrices" else lr
    hidden = {"init_std": width**-0.5, "lr": width**-1 * lr, "eps": width**-1 * branch, "weight_decay": width}
    return (
        Row(role="embedding", eps=width**-1, source=TABLE_1),
        Row(role="position", eps=width**-1, weight_decay=ZERO, source=TABLE_1),
        Row(role="norm", lr=vector_lr, eps=width**-1 * branch, weight_decay=ZERO, source=TABLE_1),
        Row(role="final_norm", eps=width**-1, weight_decay=ZERO, source=TABLE_1),
        Row(role="hidden_bias", init_std=ZERO, lr=vector_lr, eps=width**-1 * branch, weight_decay=ZERO, source=TABLE_1),
        Row(role="attn_q", **hidden, source=TABLE_1),
        Row(role="attn_k", **hidden, source=TABLE_1),
        Row(role="attn_v", **hidden, source=TABLE_1),
        Row(role="attn_out", **hidden, forward=branch, source=TABLE_1),
        Row(role="dense_in", **hidden, source=TABLE_1),
        Row(role="dense_gate", **hidden, source=TABLE_1),
        Row(role="dense_out", **hidden, forward=branch, source=TABLE_1),
        Row(role="readout", init_std=ONE, eps=width**-1, forward=width**-1, source=TABLE_1),
    )


def lazy_blocks(conventions: Conventions) -> tuple[ByDesign, ...]:
    """Return how blocks learn below alpha = 1: less inside, and branches move by the change of what they read."""
    roles = INSIDE if conventions["depth_lr"] == "matrices" else (*INSIDE, *VECTORS)
    inner = depth ** (float(conventions["depth_alpha"]) - 1)
    return (
        ByDesign(size=inner, learned=roles, source=LAZY),
        ByDesign(size=inner**-1, changed=("attn_out", "moe", "dense"), source=LAZY),
    )


def with_conventions(rows: tuple[Row, ...], conventions: Conventions) -> tuple[Row, ...]:
    """Return the rows under CompleteP's conventions. A global eps is the eps of the hidden matrices."""
    rows = with_readout(with_conditioning(rows), conventions, "adam", forward=width**-1, written="forward")
    single = width**-1 * depth ** -float(conventions["depth_alpha"])
    return with_eps(with_weight_decay(rows, conventions), conventions, single)


COMPLETEP = Table(
    name="completep",
    source="arXiv 2505.01618",
    axes=("width", "depth"),
    fixed={"dense_ratio": "the source keeps the FFN's ratio to the width"},
    rows=with_muon(lambda conventions: with_conventions(dense_rows(conventions), conventions)),
    conventions=CONVENTIONS,
    by_design=lazy_blocks,
    doc="CompleteP for dense transformers: width and depth. The FFN keeps its ratio to the width.",
)
