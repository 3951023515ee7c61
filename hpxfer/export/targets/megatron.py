"""`megatron`: a Python module for Megatron-LM with `config_overrides`, launch arguments and model settings.

Facts of Megatron-LM: a ParamKey holds globs of parameter names; a parameter that two keys match with different numbers
is an error, and one that no key matches has the launch arguments' numbers; LR floors are absolute, one per group;
`init_method_std` is the std of all matrices, times 1/sqrt(2 layers) for those that end a branch
(megatron/core/optimizer/__init__.py, optimizer_config.py and optimizer_param_scheduler.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from hpxfer.export.names import Named
from hpxfer.export.plan import (
    Group,
    Lack,
    Pairs,
    Plan,
    forward_lacks,
    gated,
    gated_roles,
    init_lacks,
    model_names,
    other_lacks,
)
from hpxfer.export.source import groups, schedule, source
from hpxfer.export.targets import ExportTarget
from hpxfer.recipe import Recipe, globs
from hpxfer.scaling.shape import Shape

DECAYS = {"constant": "constant", "linear": "linear", "cosine": "cosine", "wsd": "WSD"}
# Patterns of modules for hooks. A branch without biases returns its output and None, of which a hook takes the first.
SITES = {
    "embedding": "*embedding.word_embeddings",
    "attn_out": "*decoder.layers.*.self_attention",
    "router": "*decoder.layers.*.mlp.router",
    "expert_out": "*decoder.layers.*.mlp.experts",
    "route_scale": "*decoder.layers.*.mlp.experts",
    "shared_out": "*decoder.layers.*.mlp.shared_experts",
    "dense_out": "*decoder.layers.*.mlp.linear_fc2",
    "readout": "*output_layer",
}
ENDS = ("attn_out", "dense_out", "expert_out", "shared_out")  # the matrices that end a branch


def roles(recipe: Recipe) -> Pairs:
    """Return the roles that names leave open: one tensor holds both inputs of a SwiGLU."""
    pairs: list[tuple[str, str]] = []
    for where, kind in (("*mlp.shared_experts", "shared"), ("*mlp.experts*", "expert"), ("*mlp", "dense")):
        first = gated_roles(kind, has_gate=gated(recipe))
        pairs += [(f"{where}.linear_fc1.weight*", first), (f"{where}.linear_fc?.bias*", "hidden_bias")]
    return (("*mlp.experts.weight1", gated_roles("expert", has_gate=gated(recipe))), *pairs)


def names(recipe: Recipe, shape: Shape) -> Sequence[Named]:
    """Return the names of a GPTModel of megatron.core with grouped experts and a spec of Transformer Engine."""
    model = recipe.file.model
    attention = ["linear_proj.weight", "linear_qkv.layer_norm_weight", "linear_qkv.weight"]
    attention += ["q_layernorm.weight", "k_layernorm.weight"] if model.qk_norm else []
    experts = [f"mlp.experts.linear_fc{i}.weight{e}" for i in (1, 2) for e in range(shape.num_experts)]
    learned = ["embedding.position_embeddings.weight"] if model.positions == "learned" else []
    return model_names(
        shape,
        "decoder.layers.{}.",
        start=["embedding.word_embeddings.weight", *learned],
        common=[f"self_attention.{name}" for name in attention],
        dense=["mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"],
        experts=["pre_mlp_layernorm.weight", "mlp.router.weight", *experts],
        shared=["mlp.shared_experts.linear_fc1.weight", "mlp.shared_experts.linear_fc2.weight"],
        end=["decoder.final_layernorm.weight", *([] if model.tied_embeddings else ["output_layer.weight"])],
    )


def _matrix_std(plan: Plan) -> float:
    """Return the std that most hidden matrices inside the branches have; Megatron has one for all."""
    counts: dict[float, int] = {}
    for row in plan.rows:
        if isinstance(row.init, float) and row.role.split("+")[0] not in ("embedding", "position", "readout", *ENDS):
            counts[row.init] = counts.get(row.init, 0) + 1
    return max(counts, key=lambda std: counts[std], default=0.0)


def _embedding_std(plan: Plan) -> float:
    return next((row.init for row in plan.rows if row.role == "embedding" and isinstance(row.init, float)), 0.0)


def lacks(plan: Plan) -> Sequence[Lack]:
    """Return what Megatron cannot hold: factors but that of attention, and a std that is not that of its matrices."""
    matrix, embedding, ends = _matrix_std(plan), _embedding_std(plan), 1 / math.sqrt(2 * plan.shape.depth)
    native = {
        row.name: embedding
        if row.role in ("embedding", "position")
        else matrix * (ends if row.role.split("+")[0] in ENDS else 1.0)
        for row in plan.rows
    }
    return [*forward_lacks(plan, SITES, held=("attn_logits",)), *init_lacks(plan, native), *other_lacks(plan)]


def _arguments(plan: Plan) -> list[str]:
    hps, found = plan.recipe.hps, plan.phases
    beta1, beta2 = plan.betas or (hps.beta1, hps.beta2)
    peak = max(group.lr for group in plan.groups)
    out = {
        "--optimizer": "adam",
        "--lr": peak,
        "--min-lr": peak * (found.final_fraction if found else 0.0),
        "--lr-warmup-init": 0.0,  # a start above zero would be the same number in all groups
        "--adam-beta1": beta1,
        "--adam-beta2": beta2,
        "--adam-eps": hps.eps,
        "--weight-decay": hps.weight_decay,
        "--init-method-std": _matrix_std(plan),
        "--embedding-init-method-std": _embedding_std(plan),
    }
    if found is not None:
        out |= {
            "--train-iters": found.steps,
            "--lr-decay-iters": found.steps,
            "--lr-warmup-iters": found.warmup_steps,
            "--lr-decay-style": DECAYS[found.decay],
        }
        if found.decay == "wsd":
            out |= {"--lr-wsd-decay-style": "linear", "--lr-wsd-decay-iters": found.decay_steps}
    training = plan.recipe.file.training
    if training is not None:
        out["--clip-grad"] = training.gradient_clip or 0.0
    if not plan.recipe.file.model.tied_embeddings:
        out["--untie-embeddings-and-output-weights"] = ""
    return [word for name, value in out.items() for word in ((name,) if value == "" else (name, str(value)))]


def files(plan: Plan, lacks: Sequence[Lack]) -> dict[str, str]:
    """Return the module."""
    schedule(plan)  # is one that Megatron has
    fraction = plan.phases.final_fraction if plan.phases else 0.0

    def numbers(group: Group) -> dict[str, float]:
        decay = {"start_wd": group.weight_decay, "end_wd": group.weight_decay, "wd_mult": 1.0}
        return {"max_lr": group.lr, "min_lr": group.lr * fraction, "eps": group.numbers["eps"], **decay}

    values = {
        "GROUPS": groups(plan, partial(globs, lead="*"), numbers),
        "launch_args": _arguments(plan),
        "transformer_config": {"softmax_scale": plan.forward["attn_logits"]} if "attn_logits" in plan.forward else {},
    }
    return source(plan, lacks, ["megatron"], values)


MEGATRON = ExportTarget(
    name="megatron",
    doc="a Python module with config_overrides, launch arguments and model settings for Megatron-LM",
    roles=roles,
    names=names,
    lacks=lacks,
    files=files,
)
