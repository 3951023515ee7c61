"""Forward sites: the places in a model where its forward pass multiplies by a number of the recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpxfer.registry import registry

if TYPE_CHECKING:
    import torch

BRANCH = "before it is added to the residual stream, its bias included"


def forward_sites(gate: str, route_scale: float = 1.0) -> dict[str, str]:
    """Return key of a forward multiplier -> what is multiplied by it, for a model with this gate.

    `route_scale` is the fixed factor that the base model has on the weights of its routed experts.
    """
    row = registry("gate").get(gate, "model.gate")
    sites = {
        "embedding": "the rows of the embedding, before positions are added to them",
        "attn_logits": "the products q.k before the softmax: `scale` of F.scaled_dot_product_attention",
        "attn_out": f"the output of attention, {BRANCH}",
        "router": "the router's logits, or its input if the router has no bias",
        "expert_out": (
            f"the SUM of gate * expert output over the active experts, {BRANCH}; gate = {row.formula}; the number "
            "contains the base's 1/num_active, so that the model must not average as well"
        ),
        "shared_out": f"the SUM of the shared experts' outputs, {BRANCH}",
        "dense_out": f"the output of a dense FFN, {BRANCH}",
        "readout": "the logits",
    }
    if row.sums_to_one_over is None:
        sites["expert_out"] += "; the gates must not be normalized"
    else:
        sites["route_scale"] = f"the gates, which sum to one over {row.sums_to_one_over} experts before it"
    if route_scale != 1.0:
        contained = f"the number contains the base's route_scale {route_scale:g}"
        sites["route_scale"] = f"{sites.get('route_scale', 'the gates of the active experts')}; {contained}"
    return sites


def mlp_sites(expert_out: str) -> dict[str, str]:
    """Return the sites of a mixture of MLPs. `expert_out` is the text of that of a transformer."""
    return {
        "embedding": "what the input layer gives, before its activation",
        "router": "the router's logits, before any bias",
        "inverse_temperature": "the router's logits, after any bias and before the gate",
        "expert_out": expert_out.replace(BRANCH, "before a residual is added"),
        "readout": "the outputs",
    }


def attention_scale(rule: str, head_dim: int) -> float:
    """Return the factor on q.k under the base model's rule."""
    return 1.0 / head_dim if rule == "1/d_head" else float(head_dim**-0.5)


# What multiplies the output of a branch. Only these two may multiply the same output.
BRANCHES = ("attn_out", "expert_out", "route_scale", "shared_out", "dense_out")
EXPERTS = ("expert_out", "route_scale")
TOGETHER = set(EXPERTS)


def multiplied_twice(
    sites: Sequence[tuple[str, str]], named: Sequence[tuple[int, str]], modules: Mapping[str, torch.nn.Module]
) -> list[str]:
    """Return which outputs two sites would both multiply, one sentence per pair of sites.

    `named` holds (number of a site, name of a module that its pattern names). Two sites meet where they name one
    module, and where the module of one is part of the other's: a factor on a MoE layer multiplies the shared experts in
    it too.
    """
    sites_of: dict[int, list[tuple[int, str]]] = {}
    for at, name in named:
        sites_of.setdefault(id(modules[name]), []).append((at, name))
    meet: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for first, outer in named:
        for part in modules[outer].modules():
            same = part is modules[outer]
            for second, inner in sites_of.get(id(part), ()):
                met_before = same and first >= second
                if not met_before and _clash(sites[first][1], sites[second][1], same):
                    meet.setdefault((first, second), []).append((outer, inner))
    return [_spell(sites[first], sites[second], found) for (first, second), found in meet.items()]


def _clash(outer: str, inner: str, same: bool) -> bool:
    """Return whether the numbers of two keys would both multiply what the inner module returns."""
    if outer == inner:
        return True
    if same and "readout" in (outer, inner):
        return {outer, inner} <= {"readout", *BRANCHES}
    return outer in BRANCHES and inner in BRANCHES and {outer, inner} != TOGETHER


def shared_by_hand(
    sites: Sequence[tuple[str, str]],
    named: Sequence[tuple[int, str]],
    modules: Mapping[str, torch.nn.Module],
    numbers: Mapping[str, float],
) -> list[str]:
    """Return which sites of routed experts multiply shared experts as well, one sentence per site.

    This is for a model that multiplies the shared experts by itself. They are known by their name.
    """
    net: dict[str, float] = {}  # two factors may cancel
    for at, name in named:
        if sites[at][1] in TOGETHER:
            net[name] = net.get(name, 1.0) * numbers.get(sites[at][1], 1.0)
    meet: dict[int, list[tuple[str, str]]] = {}
    for at, name in named:
        parts = modules[name].named_children()
        shared = next((part for part, _ in parts if "shared" in part.lower()), None)
        if shared and sites[at][1] in TOGETHER and not math.isclose(net[name], 1.0):
            meet.setdefault(at, []).append((name, f"{name}.{shared}"))
    return [
        f"a module must be multiplied once, got the site {sites[at][0]!r} ({sites[at][1]}) for {found[0][0]}"
        f"{_more(found)}, which returns what {found[0][1]} gives too, and shared_out by hand; name the module that "
        f"returns the routed experts alone, or name {sites[at][1]} in by_hand too"
        for at, found in meet.items()
    ]


def _more(found: Sequence[tuple[str, str]]) -> str:
    return f" and {len(found) - 1} more" if len(found) > 1 else ""


def _spell(first: tuple[str, str], second: tuple[str, str], found: Sequence[tuple[str, str]]) -> str:
    (outer, inner), more = found[0], _more(found)
    if first == second and outer != inner:
        return (
            f"a module must be multiplied once, got two sites for {inner}: {first[0]!r} ({first[1]}) names {inner}, "
            f"which is part of {outer}, and {outer} itself{more}; `*` matches dots too, and [0-9] a digit alone"
        )
    where = inner if outer == inner else f"{inner}, which is part of {outer},"
    both = " and ".join(f"{pattern!r} ({key})" for pattern, key in (first, second))
    return (
        f"a module must be multiplied once, got two sites for {where}{more}: {both}; name for each key the module that "
        "returns this part alone, e.g. '*.mlp.experts' and '*.mlp.shared_experts', or name one key in by_hand"
    )
