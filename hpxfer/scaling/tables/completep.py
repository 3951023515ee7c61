"""`completep`: the dense rows of CompleteP (arXiv 2505.01618, Table 1), width and depth, Adam."""

from __future__ import annotations

from hpxfer.scaling.monomial import ONE, ZERO, depth, width
from hpxfer.scaling.table import Convention, Conventions, Row, Table

TABLE_1 = "2505.01618 Table 1"

DEPTH_ALPHA = Convention(
    default=1.0,
    legal=("between", 0.5, 1.0),
    doc="residual branches get depth^-alpha, the LR inside them depth^(alpha-1); 1 is CompleteP",
)


def dense_rows(conventions: Conventions) -> tuple[Row, ...]:
    """Return the rows of everything outside the MoE layer. Tied models read `readout` for its forward factor only."""
    alpha = float(conventions["depth_alpha"])
    branch = depth**-alpha  # residual multiplier
    lr = depth ** (alpha - 1)  # 1 at alpha = 1
    hidden = {"init_std": width**-0.5, "lr": width**-1 * lr, "eps": width**-1 * branch, "weight_decay": width}
    return (
        Row(role="embedding", eps=width**-1, source=TABLE_1),
        Row(role="position", eps=width**-1, weight_decay=ZERO, source=TABLE_1),
        Row(role="norm", lr=lr, eps=width**-1 * branch, weight_decay=ZERO, source=TABLE_1),
        Row(role="final_norm", eps=width**-1, weight_decay=ZERO, source=TABLE_1),
        Row(role="hidden_bias", init_std=ZERO, lr=lr, eps=width**-1 * branch, weight_decay=ZERO, source=TABLE_1),
        Row(role="attn_q", **hidden, source=TABLE_1),
        Row(role="attn_k", **hidden, source=TABLE_1),
        Row(role="attn_v", **hidden, source=TABLE_1),
        Row(role="attn_out", **hidden, forward=branch, source=TABLE_1),
        Row(role="dense_in", **hidden, source=TABLE_1),
        Row(role="dense_gate", **hidden, source=TABLE_1),
        Row(role="dense_out", **hidden, forward=branch, source=TABLE_1),
        Row(role="readout", init_std=ONE, eps=width**-1, forward=width**-1, source=TABLE_1),
    )


COMPLETEP = Table(
    name="completep",
    source="arXiv 2505.01618",
    axes=("width", "depth", "dense_width"),
    rows={"adam": dense_rows},
    conventions={"depth_alpha": DEPTH_ALPHA},
    doc="CompleteP for dense transformers: width and depth. The FFN keeps its ratio to the width.",
)
