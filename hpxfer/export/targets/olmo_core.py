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
    Pairs,
    Plan,
    forward_lacks,
    init_lacks,
    model_names,
    numbered_roles,
    other_lacks,
)
from hpxfer.export.source import groups, schedule, source
from hpxfer.export.targets import ExportTarget
from hpxfer.recipe import Recipe, globs
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
BRANCHES = ("attention", "feed_forward")


def roles(recipe: Recipe) -> Pairs:
    """Return the roles that names leave open."""
    ffns = (("*.experts.mlp", "expert"), ("*.shared_mlp", "shared"), ("*.feed_forward", "dense"))
    return (("lm_head.norm.weight", "final_norm"), *numbered_roles(ffns, (".weight", "")))


def names(recipe: Recipe, shape: Shape) -> Sequence[Named]:
    """Return the names of a Transformer or a MoETransformer of OLMo-core."""
    attention = ["w_q", "w_k", "w_v", "w_out", *(["q_norm", "k_norm"] if recipe.file.model.qk_norm else [])]
    ffn = ("w1", "w2", "w3")
    return model_names(
        shape,
        "blocks.{}.",
        start=["embeddings.weight"],
        common=[*(f"attention.{name}.weight" for name in attention), *(f"{n}_norm.weight" for n in BRANCHES)],
        dense=[f"feed_forward.{name}.weight" for name in ffn],
        experts=["feed_forward_moe.router.weight", *(f"feed_forward_moe.experts.mlp.{name}" for name in ffn)],
        shared=[f"feed_forward_moe.shared_mlp.{name}.weight" for name in ffn],
        end=["lm_head.norm.weight", "lm_head.w_out.weight"],
    )


def lacks(plan: Plan) -> Sequence[Lack]:
    """Return what OLMo-core cannot hold: the forward multipliers, the init, and an LR floor of WSD."""
    scale = plan.forward.get("attn_logits")
    by_model = {
        "attn_logits": f"pass scale={scale!r} to the attention backend (scaled dot product)",
        "router": f"multiply the router's logits by {plan.forward.get('router', 1.0)!r}",
    }
    out = [*forward_lacks(plan, SITES, plan.common_attention, by_model), *init_lacks(plan, {})]
    if (found := plan.phases) is not None and found.decay == "wsd" and found.final_fraction:
        call = "multiply the LR of each group by a factor of the step, e.g. recipe.scheduler(optimizer, factor)"
        out.append(Lack(what=f"a floor of {found.final_fraction:g} of the peak LR in each group under WSD", call=call))
    return [*out, *other_lacks(plan)]


def files(plan: Plan, lacks: Sequence[Lack]) -> dict[str, str]:
    """Return the module."""
    hps = plan.recipe.hps
    values = {
        "OPTIMIZER": {"lr": hps.lr, "betas": plan.betas, "eps": hps.eps, "weight_decay": hps.weight_decay},
        "GROUPS": groups(plan, globs, lambda group: group.numbers),
        "SCHEDULE": schedule(plan),
    }
    return source(plan, lacks, ["olmo_core"], values)


OLMO_CORE = ExportTarget(
    name="olmo-core",
    doc="a Python module with group_overrides, the optimizer config and the schedule for OLMo-core",
    roles=roles,
    names=names,
    lacks=lacks,
    files=files,
)
