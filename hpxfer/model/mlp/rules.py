"""Rules of a sweep of the family `mlp` beside those that all families share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpxfer.errors import HpxferError
from hpxfer.registry import registry, rows_of
from hpxfer.scaling.evaluate import parameterization, ratios
from hpxfer.scaling.regimes import regime_warning
from hpxfer.scaling.shape import Shape
from hpxfer.spec.check_shapes import HOW_TO_ALLOW
from hpxfer.spec.mlp import LEARNED
from hpxfer.spec.model_section import MLPSpec
from hpxfer.spec.problem import Problem
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.yaml_file import KeyPath

MODEL_KEYS = ("mlp", "gate", "balance", "ties", "init", "matrix_std", "init_draw", "tied_embeddings")
BASE_KEYS = ("width", "depth", "num_experts", "num_active", "expert_ratio", "expert_width")
_GATES = ("sigmoid", "softmax", "normalized_softmax")
AT: KeyPath = ("model", "mlp")


def problems(spec: SweepSpec, shapes: Sequence[tuple[KeyPath, Shape]]) -> Iterator[Problem]:
    """Yield every broken rule. `shapes` are those of the sweep, none if they are broken themselves."""
    model, options = spec.model, spec.model.mlp
    if options is None:
        yield AT, "must be a mapping of options, which may be empty, got none"
        return
    if model.gate not in _GATES:
        yield ("model", "gate"), f"must be {', '.join(_GATES[:-1])} or {_GATES[-1]} in the family mlp, got {model.gate}"
    else:
        yield from _aggregation(options, registry("gate").get(model.gate).sums_to_one_over is not None, model.gate)
    if model.balance.aux != "none":
        yield ("model", "balance", "aux"), f"must be none in the family mlp, got {model.balance.aux}"
    if model.balance.bias != "none" and shapes and all(shape.num_active == shape.num_experts for _, shape in shapes):
        yield (
            ("model", "balance", "bias"),
            f"has no effect where all experts are active, got {model.balance.bias}; take it out",
        )
    if options.router_bias in LEARNED and model.balance.bias != "none":
        yield (
            ("model", "balance", "bias"),
            f"must be none with a learned router bias, got {model.balance.bias}: both would move one bias",
        )
    if model.tied_embeddings:
        yield ("model", "tied_embeddings"), "must be false: a sample has no embedding; take it out"
    if options.router_bias == "none" and options.router_bias_std != MLPSpec.model_fields["router_bias_std"].default:
        yield (*AT, "router_bias_std"), "goes with router_bias, got none; name one, or take it out"
    if options.loss == "cross_entropy" and spec.data.targets:
        yield (*AT, "loss"), "must be squared_error where samples have real targets, got cross_entropy"
    yield from _shapes(options, shapes)
    yield from _regimes(spec, options, shapes)
    if not options.residual:
        yield from _branches(spec, shapes)


def _branches(spec: SweepSpec, shapes: Sequence[tuple[KeyPath, Shape]]) -> Iterator[Problem]:
    """Yield the shapes of another depth under a table that divides by the depth what a residual branch adds.

    Without a residual the blocks follow each other, and L blocks would divide the features by depth^L. MSSP changes
    nothing per block there (I.10).
    """
    column = rows_of("optimizer").get(spec.training.optimizer).column
    for chosen in spec.parameterizations:
        try:
            rows = parameterization(chosen.table, chosen.conventions).rows(column)
        except HpxferError:
            continue  # reported by itself
        if not any("depth" in dict(row.forward.exponents) for row in rows if row.role == "expert_out"):
            continue
        for at, shape in shapes:
            if shape.depth != shapes[0][1].depth:
                yield (
                    at,
                    f"depth must stay at {shapes[0][1].depth} under {chosen.table} without a residual, got "
                    f"{shape.depth}: the table divides the output of each block by the depth; write "
                    "model.mlp.residual: true",
                )


def _aggregation(options: MLPSpec, sums_to_one: bool, gate: str) -> Iterator[Problem]:
    given = options.aggregation
    if sums_to_one and given not in (None, "none"):
        yield (
            (*AT, "aggregation"),
            f"must be none with the gate {gate}, whose weights sum to one already, got {given}; take it out",
        )
    elif not sums_to_one and given == "none":
        yield (
            (*AT, "aggregation"),
            (f"must be 1/K or 1/M with the gate {gate}, whose weights sum to no fixed number, got none"),
        )


def _shapes(options: MLPSpec, shapes: Sequence[tuple[KeyPath, Shape]]) -> Iterator[Problem]:
    for at, shape in shapes:
        if not shape.num_experts:
            yield at, "must have experts: num_experts, num_active and expert_width or expert_ratio, got none"
        elif shape.num_shared or shape.num_groups > 1:
            yield at, "must have no shared experts and no groups, which the family mlp has not; take them out"
        elif options.expert_matrices == 1 and shape.expert_width != shape.width:
            yield (
                at,
                f"expert_width must be the width {shape.width} with expert_matrices: 1, got {shape.expert_width}; give "
                "expert_ratio: 1",
            )


def _regimes(spec: SweepSpec, options: MLPSpec, shapes: Sequence[tuple[KeyPath, Shape]]) -> Iterator[Problem]:
    """Yield the shapes that leave a table's regime, and the tables with a router bias of their own beside the model's.

    Without its regime, a table of MSSP predicts nothing, and a sweep would measure how wrong it is.
    """
    for index, chosen in enumerate(spec.parameterizations):
        try:
            choice = parameterization(chosen.table, chosen.conventions)
        except HpxferError:
            continue  # reported by itself
        if choice.structure().router_bias_std and options.router_bias != "none":
            yield (
                ("parameterizations", index),
                f"{choice.label()} has a router bias by its convention router_bias_std, and model.mlp.router_bias is "
                f"{options.router_bias}; keep one of the two",
            )
        if choice.table.regime is None:
            continue
        for at, shape in shapes:
            axis = spec.axes[str(at[1])] if at[0] == "axes" else None
            allowed = axis is not None and axis.allow_kappa_change
            if not allowed and (why := regime_warning(choice.table, ratios(shapes[0][1], shape))):
                yield at, why + ("" if axis is None else f"; {HOW_TO_ALLOW}")
