"""`complete-mue`: arXiv 2605.23893, Tables 2 and 3, for Adam. It tunes a dense FFN and reaches any FFN or MoE layout.

A block is y = A * sum over branches of r * o, with A = width / H_act; the routing weights sum to one over the active
experts and r, the route scale, is num_active (1 for shared experts and dense FFNs). Table 2 gives the layers. Table 3
gives three factors for batch and duration: on every LR and weight decay, on every eps, and on 1 - beta. `duration`
counts tokens: a larger batch at the same tokens changes `batch` alone, more steps at the same batch `duration` alone.
"""

from __future__ import annotations

from dataclasses import replace

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
from hpxfer.scaling.monomial import ZERO, active, active_width, batch, dense_ratio, depth, duration, width
from hpxfer.scaling.muon import with_muon
from hpxfer.scaling.table import Conventions, Row, Table

TABLE_2 = "2605.23893 Table 2, eps as CompleteP"
TABLE_3 = "2605.23893 Table 3"
COMPLETEP = "2605.23893: as CompleteP"

SCHEDULE = batch**0.5 * duration**-0.5  # on LR and weight decay
BRANCH = depth**-1
SINGLE_EPS = width**-1 * depth**-1


def _layers() -> tuple[Row, ...]:
    """Return the factors of the layers; weight decay has no width factor in this source."""
    hidden = {"init_std": width**-0.5, "lr": width**-1, "eps": SINGLE_EPS}
    down = {**hidden, "init_std": width**-0.5 * active_width**0.5, "forward": BRANCH * active_width**-1}
    dense = {**hidden, "init_std": width**-0.5 * dense_ratio**0.5, "forward": BRANCH * dense_ratio**-1}
    return (
        Row(role="embedding", eps=width**-1, source=COMPLETEP),
        Row(role="position", eps=width**-1, weight_decay=ZERO, source=COMPLETEP),
        Row(role="norm", eps=SINGLE_EPS, weight_decay=ZERO, source=COMPLETEP),
        Row(role="final_norm", eps=width**-1, weight_decay=ZERO, source=COMPLETEP),
        Row(role="hidden_bias", init_std=ZERO, eps=SINGLE_EPS, weight_decay=ZERO, source=COMPLETEP),
        Row(role="attn_q", **hidden, source=COMPLETEP),
        Row(role="attn_k", **hidden, source=COMPLETEP),
        Row(role="attn_v", **hidden, source=COMPLETEP),
        Row(role="attn_out", **hidden, forward=BRANCH, source=COMPLETEP),
        Row(role="dense_in", **hidden, source=TABLE_2),
        Row(role="dense_gate", **hidden, source=TABLE_2),
        Row(role="dense_out", **dense, source=TABLE_2 + ", dense FFN"),
        Row(role="router", **hidden, source=TABLE_2),
        Row(role="router_bias", init_std=ZERO, weight_decay=ZERO, source="balancing rule, not the optimizer"),
        Row(role="expert_in", **hidden, source=TABLE_2),
        Row(role="expert_gate", **hidden, source=TABLE_2),
        Row(role="expert_out", **down, source=TABLE_2 + ", routed experts"),
        Row(role="shared_in", **hidden, source=TABLE_2),
        Row(role="shared_gate", **hidden, source=TABLE_2),
        Row(role="shared_out", **down, source=TABLE_2 + ", shared branch"),
        Row(role="readout", eps=width**-1, forward=width**-1, source=COMPLETEP),
    )


def _scheduled(row: Row) -> Row:
    """Return the row with the factors of batch and duration. They do not apply to the balancing rule."""
    if row.role == "router_bias":
        return row
    return replace(
        row,
        lr=row.lr * SCHEDULE,
        eps=row.eps * SCHEDULE**-1,
        weight_decay=row.weight_decay * SCHEDULE,
        source=f"{row.source}; {TABLE_3}",
    )


def _rows(conventions: Conventions) -> tuple[Row, ...]:
    rows = with_readout(with_conditioning(_layers()), conventions, "adam", forward=width**-1, written="forward")
    rows = with_weight_decay((_scheduled(row) for row in rows), conventions)
    return with_eps(rows, conventions, SINGLE_EPS * SCHEDULE**-1)


COMPLETE_MUE = Table(
    name="complete-mue",
    source="arXiv 2605.23893",
    axes=(
        *("width", "depth", "experts", "active", "expert_ratio", "granularity", "shared", "groups", "dense_ratio"),
        *("batch", "duration"),
    ),
    rows=with_muon(_rows),
    conventions={
        "readout": readout_convention("forward"),
        "embeddings": EMBEDDINGS,
        "weight_decay": WEIGHT_DECAY,
        "eps": EPS,
    },
    route_scale=active,
    normalized_gate=True,
    one_minus_beta=batch * duration**-1,
    constant_decay=True,
    eps_by_layout=False,
    doc="Complete-muE: tune on a dense FFN, transfer to any layout of experts, and along batch and duration.",
)
