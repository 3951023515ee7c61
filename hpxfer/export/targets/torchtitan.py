"""`torchtitan`: a Python module with a config function for torchtitan.

Facts of torchtitan: the first regex of `param_groups` that is found in a name wins, a pattern without a parameter and a
parameter without a pattern are errors, in every part of a pipeline; `min_lr_factor` is a share of the peak; a module's
config has `param_init`, which maps a parameter to the function that starts it; K and V share one config. The names are
those of version 0.3 (torchtitan/components/optimizer, torchtitan/models/common).
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
from hpxfer.recipe import Recipe, templates
from hpxfer.scaling.shape import Shape

SITES = {
    "embedding": "tok_embeddings",
    "attn_out": "layers.*.attention",
    "router": "layers.*.moe.router.gate",
    "expert_out": "layers.*.moe.routed_experts",
    "route_scale": "layers.*.moe.routed_experts",
    "shared_out": "layers.*.moe.shared_experts",
    "dense_out": "layers.*.feed_forward",
    "readout": "lm_head",
}


def roles(recipe: Recipe) -> Pairs:
    """Return the roles that names leave open."""
    ffns = (("*.moe.shared_experts", "shared"), ("*experts", "expert"), ("*.feed_forward", "dense"))
    return numbered_roles(ffns, (".weight", "", "_E*"))


def names(recipe: Recipe, shape: Shape) -> Sequence[Named]:
    """Return the names of a decoder of torchtitan with grouped-query attention, as its Llama 3 and Qwen3 have them."""
    attention = ["qkv_linear.wqkv", "wo", *(["q_norm", "k_norm"] if recipe.file.model.qk_norm else [])]
    experts = [f"moe.routed_experts.inner_experts.{name}" for name in ("w1_EFD", "w2_EDF", "w3_EFD")]
    ffn = ("w1", "w2", "w3")
    return model_names(
        shape,
        "layers.{}.",
        start=["tok_embeddings.weight"],
        common=["attention_norm.weight", "ffn_norm.weight", *(f"attention.{name}.weight" for name in attention)],
        dense=[f"feed_forward.{name}.weight" for name in ffn],
        experts=[*experts, "moe.router.gate.weight"],
        shared=[f"moe.shared_experts.{name}.weight" for name in ffn],
        end=["norm.weight", *([] if recipe.file.model.tied_embeddings else ["lm_head.weight"])],
    )


def lacks(plan: Plan) -> Sequence[Lack]:
    """Return what torchtitan cannot hold: every forward multiplier."""
    scale = plan.forward.get("attn_logits")
    by_model = {
        "attn_logits": f"set block.attention.scaling = {scale!r} in each block, which is 1/sqrt(head_dim) at first"
    }
    # param_init holds the std of every matrix; the same draw for all experts it does not.
    native = {row.name: row.init if isinstance(row.init, float) else 0.0 for row in plan.rows}
    return [*forward_lacks(plan, SITES, plan.common_attention, by_model), *init_lacks(plan, native), *other_lacks(plan)]


def _param_init(plan: Plan) -> dict[str, float]:
    stds: dict[float, list[str]] = {}
    for row in plan.rows:
        if isinstance(row.init, float) or row.init == "zeros":
            stds.setdefault(row.init if isinstance(row.init, float) else 0.0, []).append(row.name)
    made = zip(stds, templates(list(stds.values())), strict=True)
    return {pattern: std for std, patterns in made for pattern in patterns}


def files(plan: Plan, lacks: Sequence[Lack]) -> dict[str, str]:
    """Return the module."""
    values = {
        "PARAM_INIT": _param_init(plan),
        "GROUPS": groups(plan, templates, lambda group: {**group.numbers, "betas": plan.betas}),
        "SCHEDULE": schedule(plan),
    }
    return source(plan, lacks, ["torchtitan"], values)


TORCHTITAN = ExportTarget(
    name="torchtitan",
    doc="a Python module with a config function for torchtitan",
    roles=roles,
    names=names,
    lacks=lacks,
    files=files,
)
