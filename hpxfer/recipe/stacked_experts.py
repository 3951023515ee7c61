"""Stacked experts: tensors of experts x in x out whose names say nothing, by their sizes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

BY_SIZE = "by its size, as all experts of a layer in one tensor"
BY_ORDER = f"{BY_SIZE}, and by its place in the order of the tensors"


def stacked_experts(
    blocks: Mapping[str, str],
    of_experts: Collection[str],
    roles: Mapping[str, str],
    sizes: Mapping[str, tuple[int, ...] | None],
) -> Iterator[tuple[str, str, str]]:
    """Yield (name, role, why it is a guess) for the experts of blocks in which no name says which they are.

    `blocks` maps names to their block, and `of_experts` are those that lie in a module of experts. The experts are the
    tensors of E x width x h or E x h x width there, or beside a router of E experts: an input and an output, or an
    input and a gate in one of twice the size. Of two equal sizes the first is the input. Where h is the width, and one
    tensor looks like the other, nothing is said.
    """
    widths = {size[-1] for name, role in roles.items() if role == "embedding" and (size := sizes[name])}
    if len(widths) != 1:
        return
    (width,) = widths
    routers: dict[str, tuple[int, ...]] = {}
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for name, block in blocks.items():
        size, role = sizes[name] or (), roles.get(name, "")
        if role == "router":
            routers[block] = (*routers.get(block, ()), *size)
        if len(size) == 3 and width in size[1:] and (not role or role.startswith("expert_")):
            found.setdefault(block, {})[name] = (size[1], size[2])
    for block, tensors in found.items():
        if any(name in roles for name in tensors):
            continue
        held = {
            name: size
            for name, size in tensors.items()
            if name in of_experts or (sizes[name] or (0,))[0] in routers.get(block, ())
        }
        yield from _of_layer(held, width)


def _of_layer(found: Mapping[str, tuple[int, int]], width: int) -> Iterator[tuple[str, str, str]]:
    names = list(found)
    hidden = {name: a * b // width for name, (a, b) in found.items()}
    if len(found) == 2:
        low, high = sorted(names, key=lambda name: hidden[name])
        if hidden[high] == 2 * hidden[low]:
            yield high, "expert_in+expert_gate", BY_SIZE
            yield low, "expert_out", BY_SIZE
        elif found[names[0]] == found[names[1]][::-1] != found[names[1]]:
            yield names[0], "expert_in", BY_ORDER
            yield names[1], "expert_out", BY_ORDER
    elif len(found) == 3 and len(set(hidden.values())) == 1 and len(set(found.values())) == 2:
        counts = Counter(found.values())
        first, second = (name for name in names if counts[found[name]] == 2)
        (last,) = (name for name in names if counts[found[name]] == 1)
        if found[first] == found[last][::-1]:
            yield first, "expert_gate", BY_SIZE
            yield second, "expert_in", BY_SIZE
            yield last, "expert_out", BY_SIZE
