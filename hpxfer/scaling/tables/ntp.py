"""`ntp`: the neural tangent parameterization for SGD, in its form without weight multipliers.

The factor 1/sqrt(fan-in) in front of every matrix except the first becomes part of init std and LR. Features stop
changing as the width grows. The table is a baseline beside `mup`, and one whose changes are predicted to vanish.
"""

from __future__ import annotations

from hpxfer.scaling.conventions import (
    EMBEDDINGS,
    WEIGHT_DECAY,
    readout_convention,
    with_conditioning,
    with_readout,
    with_weight_decay,
)
from hpxfer.scaling.monomial import ZERO, dense_width, expert_width, shared_width, width
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.table import ByDesign, Conventions, Row, Table

G_1 = "MSSP Table G.1, NTP"
# All but the router and the readout, which keep learning.
LAZY = tuple(role for role in ROLES if role not in ("router", "router_bias", "readout"))
ROUTER = "NTP read for the router: an output-like layer"


def _rows(conventions: Conventions) -> tuple[Row, ...]:
    hidden = {"init_std": width**-0.5, "lr": width**-1}
    rows: tuple[Row, ...] = (
        Row(role="embedding", source=G_1),
        Row(role="position", weight_decay=ZERO, source=G_1),
        Row(role="norm", weight_decay=ZERO, source=G_1),
        Row(role="final_norm", weight_decay=ZERO, source=G_1),
        Row(role="hidden_bias", init_std=ZERO, weight_decay=ZERO, source=G_1),
        Row(role="attn_q", **hidden, source=G_1),
        Row(role="attn_k", **hidden, source=G_1),
        Row(role="attn_v", **hidden, source=G_1),
        Row(role="attn_out", **hidden, source=G_1),
        Row(role="dense_in", **hidden, source=G_1),
        Row(role="dense_gate", **hidden, source=G_1),
        Row(role="dense_out", init_std=dense_width**-0.5, lr=dense_width**-1, source=G_1),
        Row(role="router", **hidden, source=ROUTER),
        Row(role="router_bias", init_std=ZERO, weight_decay=ZERO, source="balancing rule, not the optimizer"),
        Row(role="expert_in", **hidden, source=G_1),
        Row(role="expert_gate", **hidden, source=G_1),
        Row(role="expert_out", init_std=expert_width**-0.5, lr=expert_width**-1, source=G_1),
        Row(role="shared_in", **hidden, source=G_1),
        Row(role="shared_gate", **hidden, source=G_1),
        Row(role="shared_out", init_std=shared_width**-0.5, lr=shared_width**-1, source=G_1),
        Row(role="readout", **hidden, source=G_1),
    )
    rows = with_readout(with_conditioning(rows), conventions, "sgd", forward=width**-0.5, written="init_lr")
    return with_weight_decay(rows, conventions)


NTP = Table(
    name="ntp",
    source="MSSP (HiLD 2026) Table G.1",
    axes=("width",),
    rows={"sgd": _rows},
    conventions={"readout": readout_convention("forward"), "embeddings": EMBEDDINGS, "weight_decay": WEIGHT_DECAY},
    constant_decay=True,
    doc="Neural tangent parameterization: stable, and lazy: features move less and less as the width grows. SGD.",
    by_design=lambda conventions: (ByDesign(size=width**-0.5, learned=LAZY, changed=(*LAZY, "stream"), source=G_1),),
)
