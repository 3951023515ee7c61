"""Standard names: the parameters that a trainer's own model of a shape has. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpxfer.export.names import Named
from hpxfer.recipe import Recipe
from hpxfer.scaling.shape import Shape


def gated(recipe: Recipe) -> bool:
    """Return whether the FFNs have a gate matrix. One that is not known is taken to be a SwiGLU."""
    return recipe.file.model.ffn in ("swiglu", None)


def gated_roles(kind: str, *, has_gate: bool) -> str:
    """Return the role of a tensor that holds the input matrices of an FFN, e.g. `dense_in+dense_gate`."""
    return f"{kind}_in+{kind}_gate" if has_gate else f"{kind}_in"


def is_dense(shape: Shape, layer: int) -> bool:
    """Return whether a layer has a dense FFN. Of a shape with dense FFNs and experts, the first layer has one."""
    return not shape.num_experts or (bool(shape.dense_width) and layer == 0)


def feed_forwards(
    shape: Shape, layer: int, dense: Iterable[str], experts: Iterable[str], shared: Iterable[str]
) -> list[str]:
    """Return the names of the FFNs of a layer, of those for each kind of layer."""
    if is_dense(shape, layer):
        return list(dense)
    return [*experts, *(shared if shape.num_shared else ())]


def in_layers(shape: Shape, of_layer: dict[int, list[str]], spelled: str) -> list[str]:
    """Return the names of all layers, each behind its layer, e.g. `layers.{}.` with the number of the layer."""
    return [spelled.format(layer) + name for layer in range(shape.depth) for name in of_layer[layer]]


def named(names: Iterable[str]) -> list[Named]:
    """Return parameters whose roles follow from their names and whose sizes follow from their roles."""
    return [Named(name=name) for name in names]
