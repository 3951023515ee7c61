"""`completep-moe`: arXiv 2601.20205, Table 1, for the MoE layer, and CompleteP for the rest. Adam, at a fixed kappa."""

from __future__ import annotations

from hpxfer.scaling.monomial import ZERO, active, depth, expert_ratio, experts, width
from hpxfer.scaling.muon import with_muon
from hpxfer.scaling.table import Convention, Conventions, Row, Table
from hpxfer.scaling.tables.completep import CONVENTIONS, dense_rows, lazy_blocks, with_conventions

TABLE_1 = "2601.20205 Table 1"
FIG_11 = "2601.20205 Fig. 11 (ablation: init by fan-in)"
EPS = "; eps from measured gradient sizes"

ROUTER_INIT_EXPONENT = Convention(
    default=1.0,
    legal=(0.5, 1.0, "inf"),
    doc="gamma in the router's init std width^-gamma; inf is a zero router (another model at the base shape too)",
)

EXPERT_OUT_INIT = Convention(
    default="source",
    legal=("source", "fan_in"),
    doc="init std of expert_out along the expert size: source is expert_ratio^-1, fan_in expert_ratio^-1/2",
)


def _rows(conventions: Conventions) -> tuple[Row, ...]:
    alpha = float(conventions["depth_alpha"])
    gamma = conventions["router_init_exponent"]
    fan_in = conventions["expert_out_init"] == "fan_in"  # it breaks the collapse of loss curves (Fig. 11)
    branch = depth**-alpha
    lr = depth ** (alpha - 1)
    up = {
        "init_std": width**-0.5,
        "lr": width**-1 * lr,
        "eps": width**-1 * experts**-1 * expert_ratio**-1 * branch,
        "weight_decay": width,
    }
    rows = (
        *dense_rows(conventions),
        Row(
            role="router",
            init_std=ZERO if gamma == "inf" else width ** -float(gamma),
            lr=width**-1 * lr,
            eps=experts**-1 * branch,
            weight_decay=width,
            source=TABLE_1 + EPS,
        ),
        Row(role="router_bias", init_std=ZERO, weight_decay=ZERO, source=TABLE_1 + " (balancing rule)"),
        Row(role="expert_in", **up, source=TABLE_1 + EPS),
        Row(role="expert_gate", **up, source="as expert_in: the source has no gate matrix"),
        Row(
            role="expert_out",
            init_std=width**-0.5 * (expert_ratio**-0.5 if fan_in else expert_ratio**-1),
            lr=width**-1 * expert_ratio**-1 * lr,
            eps=width**-1 * experts**-1 * branch,
            weight_decay=width * expert_ratio,
            forward=branch * active**-1,
            source=(FIG_11 if fan_in else TABLE_1) + EPS,
        ),
    )
    return with_conventions(rows, conventions)


COMPLETEP_MOE = Table(
    name="completep-moe",
    source="arXiv 2601.20205",
    axes=("width", "depth", "experts", "active", "expert_ratio"),
    fixed={"kappa": "with another share of active experts transfer is not expected (2601.20205 Fig. 10)"},
    rows=with_muon(_rows),
    conventions={**CONVENTIONS, "router_init_exponent": ROUTER_INIT_EXPONENT, "expert_out_init": EXPERT_OUT_INIT},
    route_scale=active,  # the source's gate is a sigmoid; a gate that sums to one needs no average
    by_design=lazy_blocks,
    doc="CompleteP with MoE layers: width, depth, expert count at fixed kappa, expert size.",
)
