"""`sp`: standard parameterization. Fan-in initialization, one learning rate, one eps; the control of every report."""

from __future__ import annotations

from dataclasses import replace

from hpxfer.scaling.conventions import with_conditioning
from hpxfer.scaling.monomial import ZERO, dense_width, expert_width, shared_width, width
from hpxfer.scaling.table import Convention, Conventions, Row, Table

FAN_IN = "fan-in init, one LR, one eps"
LR_EXPONENT = Convention(
    default=0.0,
    legal=("between", -2.0, 2.0),
    doc="the papers' c (Why Routers Freeze, MSSP): the LR of every role is width^-c, and that of a router bias that is "
    "trained, but not the rate of the balancing rule; 0: one LR at every width",
)


def _rows(conventions: Conventions) -> tuple[Row, ...]:
    # A table of a user's own may take these rows without this convention.
    lr = width ** -float(conventions.get("lr_exponent", LR_EXPONENT.default))
    rows = (
        Row(role="embedding", source=FAN_IN),
        Row(role="position", weight_decay=ZERO, source=FAN_IN),
        Row(role="norm", weight_decay=ZERO, source=FAN_IN),
        Row(role="final_norm", weight_decay=ZERO, source=FAN_IN),
        Row(role="hidden_bias", init_std=ZERO, weight_decay=ZERO, source=FAN_IN),
        Row(role="attn_q", init_std=width**-0.5, source=FAN_IN),
        Row(role="attn_k", init_std=width**-0.5, source=FAN_IN),
        Row(role="attn_v", init_std=width**-0.5, source=FAN_IN),
        Row(role="attn_out", init_std=width**-0.5, source=FAN_IN),
        Row(role="dense_in", init_std=width**-0.5, source=FAN_IN),
        Row(role="dense_gate", init_std=width**-0.5, source=FAN_IN),
        Row(role="dense_out", init_std=dense_width**-0.5, source=FAN_IN),
        Row(role="router", init_std=width**-0.5, source=FAN_IN),
        Row(role="router_bias", init_std=ZERO, weight_decay=ZERO, source="balancing rule, not the optimizer"),
        Row(role="expert_in", init_std=width**-0.5, source=FAN_IN),
        Row(role="expert_gate", init_std=width**-0.5, source=FAN_IN),
        Row(role="expert_out", init_std=expert_width**-0.5, source=FAN_IN),
        Row(role="shared_in", init_std=width**-0.5, source=FAN_IN),
        Row(role="shared_gate", init_std=width**-0.5, source=FAN_IN),
        Row(role="shared_out", init_std=shared_width**-0.5, source=FAN_IN),
        Row(role="readout", init_std=width**-0.5, source=FAN_IN),
    )
    return tuple(
        replace(row, trained_lr=lr) if row.role == "router_bias" else replace(row, lr=lr)
        for row in with_conditioning(rows)
    )


SP = Table(
    name="sp",
    source="PyTorch's habit: std 1/sqrt(fan-in)",
    axes=(
        *("width", "depth", "experts", "active", "expert_ratio", "granularity", "shared", "groups", "dense_ratio"),
        *("batch", "duration"),
    ),
    rows=dict.fromkeys(("adam", "sgd", "muon"), _rows),  # one LR under each scale of Muon too
    conventions={"lr_exponent": LR_EXPONENT},
    doc="Standard parameterization: no factor but the fan-in of the initialization. The control.",
)
