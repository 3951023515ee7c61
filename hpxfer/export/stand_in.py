"""Stand-in: a torch model without memory whose parameters have the names and sizes of a model that is not here.

So a recipe gives a list of names what it gives the model itself, by the same rules and with the same refusals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpxfer.export.names import Named
from hpxfer.recipe.match import AT, JOIN
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape

if TYPE_CHECKING:
    import torch

# Where the number of tokens in the vocabulary and the length of the context are not known. No number follows from them.
VOCABULARY, CONTEXT = 50304, 2048


def stand_in(
    parameters: Sequence[Named], roles: Mapping[str, str], sized: Mapping[str, str], shape: Shape
) -> torch.nn.Module:
    """Return the model. `roles` maps each name to its role, and `sized` to that from which an unknown size follows.

    Memory is not taken (device meta).
    """
    import torch

    root = torch.nn.Module()
    tensors: dict[str, torch.nn.Parameter] = {}
    for one in parameters:
        *path, last = one.name.split(".")
        size = _of_matrices(one.size or nominal_size(one.name, sized[one.name], shape), roles[one.name], shape)
        module = root
        for at, part in enumerate(path):
            # Names such as `forward` may be parts too, so that attributes of Module must not be set.
            known = module._modules.get(part)
            is_linear = at == len(path) - 1 and AT in roles[one.name] and len(size) == 2
            fresh = torch.nn.Linear(size[1], size[0], bias=False, device="meta") if is_linear else torch.nn.Module()
            module._modules[part] = module = known if known is not None else fresh
        tensor = torch.nn.Parameter(torch.empty(size, device="meta"), requires_grad=not one.frozen)
        module._parameters[last] = tensors[one.name] = tensor if one.same_as is None else tensors[one.same_as]
        if one.one_plus:
            module.__dict__["zero_centered_gamma"] = True
        if one.embedding_scale != 1.0:
            module.__dict__["embed_scale"] = one.embedding_scale
    return root


def nominal_size(name: str, role: str, shape: Shape) -> tuple[int, ...]:
    """Return the size of a tensor of this role in a model of this shape.

    An expert's matrix stands by itself if the name has a number for the expert. Else the tensor holds all of a layer.
    """
    roles = role.partition(AT)[0].split(JOIN)
    sizes = [_nominal(each, shape) for each in roles]
    size = (sum(size[0] for size in sizes), *sizes[0][1:])
    count = {"expert": shape.num_experts, "shared": shape.num_shared}.get(roles[0].partition("_")[0], 1)
    return size if count < 2 or _has_number(name) else (count, *size)


def _has_number(name: str) -> bool:
    """Return whether a number of this name counts experts: the second one, one behind their word, or `weight3`."""
    parts = name.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdigit()]
    behind = any("expert" in part.lower() for part in parts[: numbers[-1]]) if numbers else False
    return len(numbers) > 1 or behind or re.fullmatch(r"(weight|bias)\d+", parts[-1]) is not None


def _nominal(role: str, shape: Shape) -> tuple[int, ...]:
    width = shape.width
    hidden = {"expert": shape.expert_width, "shared": shape.shared_width, "dense": shape.dense_width}
    kind, _, part = role.partition("_")
    match role:
        case "embedding" | "readout":
            return VOCABULARY, width
        case "position":
            return CONTEXT, width
        case "attn_q":
            return shape.attention_width, width
        case "attn_k" | "attn_v":
            return shape.kv_width, width
        case "attn_out":
            return width, shape.attention_width
        case "router":
            return shape.num_experts or 1, width
        case "router_bias":
            return (shape.num_experts or 1,)
    if ROLES[role] != "matrix":
        return (width,)
    # A target without such layers is refused by the recipe, which names the dimension.
    rows = hidden[kind] or 1
    return (width, rows) if part == "out" else (rows, width)


def _of_matrices(size: tuple[int, ...], role: str, shape: Shape) -> tuple[int, ...]:
    """Return the size with the width as a dimension of its own, if a router or all experts are stored flat."""
    kinds = {part.partition("_")[0] for part in role.split(JOIN)}
    whole = math.prod(size)
    if kinds <= {"router", "expert"} and role != "router_bias" and shape.width not in size and not whole % shape.width:
        return whole // shape.width, shape.width
    return size
