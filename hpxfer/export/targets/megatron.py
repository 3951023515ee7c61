"""`megatron`: a Python module for Megatron-LM with `config_overrides`, launch arguments and model settings.

Facts of Megatron-LM: a ParamKey holds globs of parameter names; a parameter that two keys match with different numbers
is an error, and one that no key matches has the launch arguments' numbers; LR floors are absolute, one per group;
`init_method_std` is the std of all matrices, times 1/sqrt(2 layers) for those that end a branch
(megatron/core/optimizer/__init__.py, optimizer_config.py and optimizer_param_scheduler.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpxfer.export.names import Named
from hpxfer.export.plan import (
    Lack,
    Plan,
    feed_forwards,
    forward_lacks,
    gated,
    gated_roles,
    in_layers,
    init_lacks,
    named,
    other_lacks,
)
from hpxfer.export.source import assigned, header, literal, require_form, strings
from hpxfer.export.target import ExportTarget
from hpxfer.recipe import Recipe
from hpxfer.recipe.known_models import Pairs
from hpxfer.recipe.match import globs
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

INSTALL = '''

def check_names(names) -> None:
    """Raise ValueError unless each trained parameter matches one entry of config_overrides, and each glob has one."""
    from fnmatch import fnmatchcase

    names, used = list(names), set()
    for name in names:
        hits = [key for key in config_overrides if any(fnmatchcase(name, glob) for glob in key.name)]
        if len(hits) != 1:
            raise ValueError(f"{name}: must match one entry of config_overrides, got {len(hits)}")
        used.update(glob for glob in hits[0].name if fnmatchcase(name, glob))
    unused = [glob for key in config_overrides for glob in key.name if glob not in used]
    if unused:
        raise ValueError(f"every glob must match a parameter, got none for {unused}")


def install() -> None:
    """Replace Megatron's get_megatron_optimizer_config by one that returns config_overrides. Call before pretrain()."""
    from megatron.training import training

    original = training.get_megatron_optimizer_config

    def get_megatron_optimizer_config(args):
        if getattr(args, "use_mup", False) or getattr(args, "scaling_recipe", None) not in (None, "none"):
            raise ValueError("these overrides scale by themselves: leave --use-mup and --scaling-recipe out")
        if getattr(args, "decoupled_lr", None) is not None:
            raise ValueError("these overrides have an LR for every parameter: leave --decoupled-lr out")
        config, _ = original(args)
        return config, config_overrides

    training.get_megatron_optimizer_config = get_megatron_optimizer_config

'''


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
    attention = ["self_attention.linear_proj.weight", "self_attention.linear_qkv.layer_norm_weight"]
    attention.append("self_attention.linear_qkv.weight")
    if model.qk_norm:
        attention += ["self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"]
    dense = ["mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"]
    experts = ["pre_mlp_layernorm.weight", "mlp.router.weight"]
    experts += [f"mlp.experts.linear_fc{i}.weight{e}" for i in (1, 2) for e in range(shape.num_experts)]
    shared = ["mlp.shared_experts.linear_fc1.weight", "mlp.shared_experts.linear_fc2.weight"]
    layers = {i: [*attention, *feed_forwards(shape, i, dense, experts, shared)] for i in range(shape.depth)}
    learned = ["embedding.position_embeddings.weight"] if model.positions == "learned" else []
    return named(
        [
            "embedding.word_embeddings.weight",
            *learned,
            *in_layers(shape, layers, "decoder.layers.{}."),
            "decoder.final_layernorm.weight",
            *([] if model.tied_embeddings else ["output_layer.weight"]),
        ]
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
    hps, found = plan.recipe.hps, require_form(plan.phases)
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
    fraction = plan.phases.final_fraction if plan.phases else 0.0
    made = globs([group.names for group in plan.groups], lead="*")
    entries = []
    for group, patterns in zip(plan.groups, made, strict=True):
        numbers = {
            "max_lr": group.lr,
            "min_lr": group.lr * fraction,
            "eps": group.eps,
            "start_wd": group.weight_decay,
            "end_wd": group.weight_decay,
            "wd_mult": 1.0,
        }
        spelled = ", ".join(f"{name!r}: {literal(value)}" for name, value in numbers.items())
        entries.append(
            f"    # {', '.join(group.roles)}\n    ParamKey(\n        name=(\n{strings(patterns, 12)}\n        )\n"
            f"    ): {{{spelled}}},\n"
        )
    settings = {"softmax_scale": plan.forward["attn_logits"]} if "attn_logits" in plan.forward else {}
    text = header(
        plan,
        "Megatron-LM: optimizer overrides, launch arguments and model settings, written by hpxfer.",
        "Call install() before pretrain() and pass launch_args. transformer_config holds fields of TransformerConfig; "
        "core_transformer_config_from_args takes them from the parsed args, on which you set them as attributes. Leave "
        "--use-mup out: it would scale again. The globs hold with and without Megatron's wrappers.",
        lacks,
    )
    arguments = "launch_args = [\n" + strings(_arguments(plan), 4) + "\n]\n"
    overrides = "config_overrides = {\n" + "".join(entries) + "}\n"
    body = "\nfrom megatron.core.optimizer import ParamKey\n\n"
    return {
        "hpxfer_megatron.py": "".join(
            [text, body, arguments, "\n", assigned("transformer_config", settings), "\n", overrides, INSTALL]
        )
    }


MEGATRON = ExportTarget(
    name="megatron",
    doc="a Python module with config_overrides, launch arguments and model settings for Megatron-LM",
    roles=roles,
    names=names,
    lacks=lacks,
    files=files,
)
