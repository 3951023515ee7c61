"""Coverage: warnings where a target shape leaves what a table's source covers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hpxfer.registry import registry
from hpxfer.scaling.evaluate import Parameterization, ratios, reference
from hpxfer.scaling.monomial import ONE
from hpxfer.scaling.regimes import regime_warning
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column

SAME = 1e-9
UNKNOWN = "unknown"
# Property of a shape that may change -> the axes of a table that cover it. Any of them is enough.
MOVES = {
    "width": ("width",),
    "depth": ("depth",),
    "experts": ("experts", "granularity"),
    "active": ("active", "granularity"),
    "expert_ratio": ("expert_ratio", "expert_width", "granularity"),
    "shared": ("shared",),
    "groups": ("groups",),
    "dense_ratio": ("dense_ratio",),
    "batch": ("batch",),
    "duration": ("duration",),
}
# Dimension of a shape -> roles that every model with this dimension has.
TENSORS = {
    "num_experts": ("router", "expert_in", "expert_out"),
    "num_shared": ("shared_in", "shared_out"),
    "dense_width": ("dense_in", "dense_out"),
}


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a shape does not say about a model. None means that it is not known."""

    gate: str | None = None
    tied_embeddings: bool | None = None
    heads_are_known: bool = True  # whether a base that names no kv_heads has one for each head
    ties: str | None = None  # which of equal experts a router chooses: index, random or fixed_bias


def coverage_warnings(
    choice: Parameterization,
    base: Shape,
    target: Shape,
    facts: ModelFacts | None = None,
    optimizer: Column = "adam",
) -> list[str]:
    """Return one sentence per way in which `target` leaves what the table's source covers.

    Nothing is known of an arm of a user's own trainer.
    """
    if choice.is_own:
        return []
    known = facts or ModelFacts()
    return [
        *_roles(choice, target, optimizer),
        *_first_experts(choice, base, target, optimizer),
        *_axes(choice, base, target, optimizer),
        *(_heads(choice, base, target) if known.heads_are_known or base.kv_heads else ()),
        *_fixed(choice, base, target),
        *_regime(choice, base, target),
        *_router(choice, target, known, optimizer),
        *_embeddings(choice, known),
    ]


def gate_warnings(shape: Shape, gate: str | None) -> list[str]:
    """Return what is wrong with a gate at a shape, whatever the table."""
    if sums_to_one_over(gate) == "active" and shape.num_active == 1:
        return [f"gate {gate} with num_active 1 ({shape.label()}): the gate is constant, the router does not learn"]
    return []


def coverage_notes(
    choice: Parameterization, base: Shape, target: Shape, facts: ModelFacts | None = None, optimizer: Column = "adam"
) -> list[str]:
    """Return what the reader should know of a table at `target`, though its source covers it."""
    out = control_notes(choice, base, target, facts, optimizer)
    ties_are_known = facts is not None and facts.ties is not None
    if 0 < target.num_active < target.num_experts and not ties_are_known and choice.zero_router(optimizer):
        out.append(_same_experts(choice, target))
    return out


def control_notes(
    choice: Parameterization, base: Shape, target: Shape, facts: ModelFacts | None = None, optimizer: Column = "adam"
) -> list[str]:
    """Return what a table that has no factor on the experts' sum holds as more of them are active. The control is one.

    A MoE layer of the base averages over its active experts. Such a table keeps the base's divisor, so that the sum of
    gates that do not sum to one grows.
    """
    old, new = reference(base).num_active, target.num_active
    gate = None if facts is None else facts.gate
    row = next((row for row in choice.rows(optimizer) if row.role == "expert_out"), None)
    if new in (0, old) or sums_to_one_over(gate) is not None or row is None or row.forward.only(("active",)) != ONE:
        return []
    return [
        f"{choice.name} keeps the base's divisor of the experts' sum: it divides the sum of {new} active experts by "
        f"{old}, and the gate {gate} does not sum to one, so that the sum has {new / old:g} times the base's weight; "
        f"part of how {choice.name} moves here comes from that, and not from its init and LR"
    ]


def _roles(choice: Parameterization, target: Shape, optimizer: Column) -> Iterator[str]:
    known = {row.role for row in choice.rows(optimizer)}
    there = [role for dim, roles in TENSORS.items() if getattr(target, dim) for role in roles]
    if missing := [role for role in there if role not in known]:
        yield f"{choice.name} has no rule for {', '.join(missing)}, which a model {target.label()} has"


def _first_experts(choice: Parameterization, base: Shape, target: Shape, optimizer: Column) -> Iterator[str]:
    """Yield what it means that the base is dense and the target has experts, under a table that does not cover it."""
    table = choice.table
    holds = table.regime or any(name in table.fixed for name in ("kappa", "num_experts", "num_active"))
    covers = not holds and all(table.covers(axis, optimizer) for axis in ("experts", "active"))
    if base.num_experts or not target.num_experts or covers:
        return
    yield (
        f"the base has no experts: {table.name}'s source does not lead from a dense FFN to experts; its factors take "
        f"the FFN of width {base.dense_width} for a single expert that is always active, and what was tuned says "
        "nothing of routers and their balance; tune a base with experts, or take a table whose source leads there"
    )


def _moved(base: Shape, target: Shape) -> Iterator[tuple[str, str]]:
    """Yield (what changes, how it changes)."""
    at = ratios(base, target)
    if not (base.num_experts or target.num_experts):
        at["expert_ratio"] = 1.0  # a dense FFN's own ratio is said once
    if not (base.dense_width and target.dense_width):
        at["dense_ratio"] = 1.0  # its counterpart are experts, whose own dimensions are compared
    for name in ("width", "depth", "experts", "active", "expert_ratio", "dense_ratio", "batch", "duration"):
        if not math.isclose(at[name], 1, rel_tol=SAME):
            yield name, f"it changes by a factor of {at[name]:g}"
    if _shared(base) != _shared(target):
        yield "shared", f"it goes from {_shared(base):g} to {_shared(target):g} of the active width"
    if base.num_groups != target.num_groups:
        yield "groups", f"it goes from {base.num_groups} to {target.num_groups}"


def _shared(shape: Shape) -> float:
    """Return the share of the active width that is always active."""
    return shape.num_shared * shape.shared_width / shape.active_width if shape.num_experts else 0.0


def _axes(choice: Parameterization, base: Shape, target: Shape, optimizer: Column) -> Iterator[str]:
    table = choice.table
    in_regime = ("width", "expert_ratio", "experts", "active") if table.regime else ()
    for name, how in _moved(base, target):
        covered = any(table.covers(axis, optimizer) for axis in MOVES[name])
        if covered or name in in_regime or name in table.fixed:
            continue
        if name in ("experts", "active") and f"num_{name}" in table.fixed:
            continue
        for_sgd = " for sgd" if optimizer == "sgd" and any(axis in table.adam_axes for axis in MOVES[name]) else ""
        yield f"{table.name} does not cover {name}{for_sgd}: {how}"
    if bool(base.dense_width) != bool(target.dense_width) and base.num_experts:
        has, lacks = ("base", "target") if base.dense_width else ("target", "base")
        yield f"the {has} has dense FFNs and the {lacks} has none to compare them with"
    if base.head_dim != target.head_dim:
        yield f"{table.name} holds head_dim fixed: it goes from {base.head_dim} to {target.head_dim}"


def _heads(choice: Parameterization, base: Shape, target: Shape) -> Iterator[str]:
    """Yield a warning where the heads do not follow the width, or those of keys and values not the heads."""
    old, new = (shape.query_heads // max(1, shape.key_heads) for shape in (base, target))
    if old != new:
        yield (
            f"{choice.table.name} does not cover kv_heads that do not follow the heads: a group goes from {old} heads "
            f"to {new}, which is another limit; let kv_heads grow with the width"
        )
    ratios_of = [shape.attention_width / (shape.width or 1) for shape in (base, target)]
    if not math.isclose(*ratios_of, rel_tol=SAME):
        yield (
            f"{choice.table.name} does not cover num_heads that do not follow the width: heads x head_dim goes from "
            f"{ratios_of[0]:g} to {ratios_of[1]:g} of the width"
        )


def _fixed(choice: Parameterization, base: Shape, target: Shape) -> Iterator[str]:
    for name, why in choice.table.fixed.items():
        old, new = getattr(base, name), getattr(target, name)
        if not math.isclose(old, new, rel_tol=SAME):
            yield f"{choice.name} holds {name} fixed: it goes from {old:g} to {new:g}; {why}"


def _regime(choice: Parameterization, base: Shape, target: Shape) -> Iterator[str]:
    if choice.table.regime and (found := regime_warning(choice.table, ratios(base, target))):
        yield found


def _router(choice: Parameterization, target: Shape, facts: ModelFacts, optimizer: Column) -> Iterator[str]:
    """Yield a warning for a gate of another kind than the source's, and for a zero router that would stay at zero."""
    if choice.table.normalized_gate and (why := _not_of_active(target, facts.gate)):
        yield f"{choice.name}'s gate sums to one over the active experts, and {why}; take the gate normalized_sigmoid"
    if not target.num_experts or not choice.zero_router(optimizer):
        return
    if target.num_active < target.num_experts:
        if facts.ties == "index":
            yield _same_experts(choice, target)
    # With a gate that sums to one, equal logits and equal experts, nothing distinguishes two experts.
    elif sums_to_one_over(facts.gate) is not None:
        gate = "with a softmax gate" if facts.gate is None else f"with the gate {facts.gate}"
        noise = "set the convention router_bias_std, or " if "router_bias_std" in dict(choice.conventions) else ""
        yield (
            f"{choice.label()} starts from a zero router, all {target.num_experts} experts are active and nothing "
            f"breaks their symmetry: {gate} the router stays uniform; {noise}activate fewer experts than there are"
        )


def _same_experts(choice: Parameterization, shape: Shape) -> str:
    return (
        f"{choice.label()} starts from a zero router: where ties go to the lowest index, all tokens go to the same "
        f"{shape.num_active} of {shape.num_experts} experts at first; choose among equal experts at random, as "
        "model.ties: random does in a sweep"
    )


def _not_of_active(shape: Shape, gate: str | None) -> str | None:
    """Return in which way a gate does not sum to one over the active experts; None if it does or is unknown."""
    over = sums_to_one_over(gate)
    if not shape.num_experts or over == UNKNOWN:
        return None
    if over == "all" and shape.num_active < shape.num_experts:
        return f"{gate} does over all, so that the sum of the active ones falls as experts are added"
    return None if over is not None else f"{gate} does not, so the route scale has nothing to act on"


def sums_to_one_over(gate: str | None) -> str | None:
    """Return what the weights of a gate sum to one over: `active`, `all` or None.

    Return UNKNOWN for a gate that is not given, and for one of a plug-in that is not loaded.
    """
    gates = registry("gate")
    over: str | None = gates.get(gate).sums_to_one_over if gate is not None and gate in gates else UNKNOWN
    return over


def _embeddings(choice: Parameterization, facts: ModelFacts) -> Iterator[str]:
    conventions = dict(choice.conventions)
    if conventions.get("embeddings") == "tied" and facts.tied_embeddings is False:
        yield (
            f"{choice.label()} is for tied embeddings, and this model has a readout of its own, which would get the "
            "embedding's init and LR; set embeddings: untied"
        )
    if conventions.get("readout") == "init_lr" and facts.tied_embeddings:
        yield (
            f"{choice.label()} scales the readout by init and LR, and this model's readout is tied to the embedding, "
            "which keeps its own; set readout: forward"
        )
    if conventions.get("readout_init") == "zero" and facts.tied_embeddings:
        yield (
            f"{choice.label()} starts from a zero readout, and this model's readout is tied to the embedding, which "
            "starts at random; set readout_init: random"
        )
