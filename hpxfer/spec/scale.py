"""Scale: the number that drift along an axis is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpxfer.scaling.shape import Shape
from hpxfer.spec.blocks import Options, moe_blocks

_WIDTHS = ("expert_width", "shared_width", "dense_width")
_DIMS = ("width", "depth", "num_experts", "num_active", *_WIDTHS, "num_shared", "num_groups", "batch_tokens", "steps")


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """An axis is measured by `name` if nothing else changes but `follows`, and everything in `holds` stays."""

    name: str
    follows: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()


# The first rule counts that fits and has another value for each shape.
_RULES = (
    _Rule(name="width", follows=_WIDTHS, holds=("expert_ratio", "shared_ratio", "dense_ratio")),
    _Rule(name="depth"),
    _Rule(name="num_active"),
    _Rule(name="num_experts", follows=("num_active",)),
    _Rule(name="expert_width"),
    _Rule(name="num_active", follows=("num_experts", "expert_width"), holds=("kappa", "routed_width")),
    _Rule(name="active_width", follows=("num_shared", "shared_width")),  # num_shared may be 0, which has no log
    _Rule(name="num_groups"),
    _Rule(name="dense_width"),
    _Rule(name="batch_tokens"),
    _Rule(name="batch_tokens", follows=("steps",), holds=("tokens",)),
    _Rule(name="steps"),
)

# A regime of the MLP mixture, which its papers measure by the width.
_REGIME = _Rule(name="width", follows=("num_experts", "num_active", "expert_width"))


def scale_of(axis_name: str, shapes: Sequence[Shape], options: Options) -> tuple[str, list[float]]:
    """Return what the scale of an axis counts and its value at every shape, always > 0.

    If a single dimension changes, the scale is that dimension. Otherwise it is the quantity that has most values: the
    weights in attention and FFNs, the hidden features that a token uses, or the tokens of the run.
    """
    if axis_name == "expert_ratio" and shapes[0].num_experts:
        return "expert_ratio", [shape.expert_ratio for shape in shapes]
    for rule in _RULES if options.mlp is None else (*_RULES, _REGIME):
        fixed = (*(dim for dim in _DIMS if dim != rule.name and dim not in rule.follows), *rule.holds)
        scales = [_number(shape, rule.name) for shape in shapes]
        if _differ(scales) and all(len({_number(shape, name) for shape in shapes}) == 1 for name in fixed):
            return rule.name, scales
    candidates = [("hidden weights", [float(_hidden_weights(shape, options)) for shape in shapes])]
    candidates += [(name, [_number(shape, name) for shape in shapes]) for name in ("active_width", "tokens")]
    return max(candidates, key=lambda candidate: len(set(candidate[1])))  # the first of equals


def _differ(scales: Sequence[float]) -> bool:
    return len(set(scales)) == len(scales)


def _number(shape: Shape, name: str) -> float:
    match name:
        case "shared_ratio":
            return shape.shared_width / shape.width
        case "routed_width":
            return float(shape.num_active * shape.expert_width)
        case _:
            return float(getattr(shape, name))


def _hidden_weights(shape: Shape, options: Options) -> int:
    """Return the weights of attention, experts and dense FFNs. The MLP mixture has experts alone."""
    if options.mlp is not None:
        matrices: int = options.mlp.expert_matrices
        return matrices * shape.depth * shape.num_experts * shape.expert_width * shape.width
    num_moe = len(moe_blocks(shape, options))
    hidden = num_moe * (shape.num_experts * shape.expert_width + shape.num_shared * shape.shared_width)
    hidden += (shape.depth - num_moe) * shape.dense_width
    matrices = 3 if options.ffn == "swiglu" else 2
    return 4 * shape.depth * shape.width**2 + matrices * shape.width * hidden
