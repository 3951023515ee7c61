"""`olmo-core`: a Python module with `group_overrides` and a scheduler for OLMo-core.

Facts of OLMo-core: a glob of an OptimGroupOverride takes its names from those that are left, a glob that matches none
is an error, and what no glob matches has the optimizer's own numbers; `alpha_f` is a share of the peak, and
`decay_min_lr` of WSD one LR for all groups; every init is cut at three standard deviations
(src/olmo_core/optim/config.py, adamw.py and scheduler.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.export.names import Named
from hpxfer.export.plan import (
    Lack,
    Phases,
    Plan,
    feed_forwards,
    forward_lacks,
    in_layers,
    init_lacks,
    named,
    other_lacks,
)
from hpxfer.export.source import header, literal, require_form, strings
from hpxfer.export.target import ExportTarget
from hpxfer.recipe import Recipe
from hpxfer.recipe.known_models import Pairs
from hpxfer.recipe.match import globs
from hpxfer.scaling.shape import Shape

SITES = {
    "embedding": "embeddings",
    "attn_out": "blocks.*.attention",
    "expert_out": "blocks.*.feed_forward_moe.experts",
    "route_scale": "blocks.*.feed_forward_moe.experts",
    "shared_out": "blocks.*.feed_forward_moe.shared_mlp",
    "dense_out": "blocks.*.feed_forward",
    "readout": "lm_head.w_out",
}
ENDS = (".weight", "")


def roles(recipe: Recipe) -> Pairs:
    """Return the roles that names leave open: w1 is the gate, w3 the other input of an FFN, w2 its output."""
    ffns = (("*.experts.mlp", "expert"), ("*.shared_mlp", "shared"), ("*.feed_forward", "dense"))
    parts = (("w1", "gate"), ("w2", "out"), ("w3", "in"))
    numbered = (
        (f"{where}.{name}{end}", f"{kind}_{part}") for where, kind in ffns for name, part in parts for end in ENDS
    )
    return (("lm_head.norm.weight", "final_norm"), *numbered)


def names(recipe: Recipe, shape: Shape) -> Sequence[Named]:
    """Return the names of a Transformer or a MoETransformer of OLMo-core."""
    of_layer = [f"attention.{name}.weight" for name in ("w_q", "w_k", "w_v", "w_out")]
    if recipe.file.model.qk_norm:
        of_layer += ["attention.q_norm.weight", "attention.k_norm.weight"]
    of_layer += ["attention_norm.weight", "feed_forward_norm.weight"]
    dense = [f"feed_forward.{name}.weight" for name in ("w1", "w2", "w3")]
    experts = ["feed_forward_moe.router.weight", *(f"feed_forward_moe.experts.mlp.{w}" for w in ("w1", "w2", "w3"))]
    shared = [f"feed_forward_moe.shared_mlp.{name}.weight" for name in ("w1", "w2", "w3")]
    layers = {i: [*of_layer, *feed_forwards(shape, i, dense, experts, shared)] for i in range(shape.depth)}
    return named(
        ["embeddings.weight", *in_layers(shape, layers, "blocks.{}."), "lm_head.norm.weight", "lm_head.w_out.weight"]
    )


def lacks(plan: Plan) -> Sequence[Lack]:
    """Return what OLMo-core cannot hold: the forward multipliers, the init, and an LR floor of WSD."""
    scale = plan.forward.get("attn_logits")
    same = scale is not None and abs(scale * plan.shape.head_dim**0.5 - 1) < 1e-9
    by_model = {
        "attn_logits": f"pass scale={scale!r} to the attention backend (scaled dot product)",
        "router": f"multiply the router's logits by {plan.forward.get('router', 1.0)!r}",
    }
    out = [*forward_lacks(plan, SITES, ("attn_logits",) if same else (), by_model), *init_lacks(plan, {})]
    if (found := plan.phases) is not None and found.decay == "wsd" and found.final_fraction:
        call = "multiply the LR of each group by a factor of the step, e.g. recipe.scheduler(optimizer, factor)"
        out.append(Lack(what=f"a floor of {found.final_fraction:g} of the peak LR in each group under WSD", call=call))
    return [*out, *other_lacks(plan)]


def _scheduler(found: Phases) -> tuple[str, str]:
    """Return the class of the schedule, and the code that makes it."""
    common = f"warmup={found.warmup_steps}, warmup_min_lr=0.0"
    match found.decay:
        case "constant":
            return "ConstantWithWarmup", f"ConstantWithWarmup({common})"
        case "wsd":
            return "WSD", f"WSD({common}, decay={found.decay_steps}, decay_fraction=None, decay_min_lr=0.0)"
        case decay:
            name = "CosWithWarmup" if decay == "cosine" else "LinearWithWarmup"
            return name, f"{name}({common}, alpha_f={literal(found.final_fraction)}, t_max={found.steps})"


def files(plan: Plan, lacks: Sequence[Lack]) -> dict[str, str]:
    """Return the module."""
    entries = []
    for group, patterns in zip(plan.groups, globs([group.names for group in plan.groups]), strict=True):
        numbers = {"lr": group.lr, "eps": group.eps, "weight_decay": group.weight_decay}
        spelled = ", ".join(f"{name!r}: {literal(value)}" for name, value in numbers.items())
        entries.append(
            f"    # {', '.join(group.roles)}\n    OptimGroupOverride(\n        params=[\n{strings(patterns, 12)}\n"
            f"        ],\n        opts={{{spelled}}},\n    ),\n"
        )
    found = require_form(plan.phases)
    kind, code = _scheduler(found) if found else ("", "")
    hps = plan.recipe.hps
    text = header(
        plan,
        "OLMo-core: optimizer groups and schedule, written by hpxfer.",
        "Use optim as the optimizer config of the train module and scheduler as its scheduler. Every parameter of the "
        "model is in one group, so that the optimizer's own lr, eps and weight decay are not used.",
        lacks,
    )
    classes = sorted(["AdamWConfig", "OptimGroupOverride", *([kind] if kind else [])])
    return {
        "hpxfer_olmo_core.py": "".join(
            [
                text,
                f"\nfrom olmo_core.optim import {', '.join(classes)}\n\n",
                "group_overrides = [\n" + "".join(entries) + "]\n",
                f"optim = AdamWConfig(\n    lr={literal(hps.lr)},\n    betas={literal(plan.betas)},\n"
                f"    eps={literal(hps.eps)},\n    weight_decay={literal(hps.weight_decay)},\n"
                "    group_overrides=group_overrides,\n)\n",
                f"scheduler = {code}\n" if code else "",
            ]
        )
    }


OLMO_CORE = ExportTarget(
    name="olmo-core",
    doc="a Python module with group_overrides, the optimizer config and the schedule for OLMo-core",
    roles=roles,
    names=names,
    lacks=lacks,
    files=files,
)
