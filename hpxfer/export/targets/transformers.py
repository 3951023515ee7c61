"""`transformers`: a Python module with a Trainer whose optimizer and schedule are the recipe's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpxfer.errors import HpxferError
from hpxfer.export.names import Named
from hpxfer.export.plan import Lack, Plan, model_names, other_lacks
from hpxfer.export.source import source
from hpxfer.export.targets import ExportTarget
from hpxfer.export.targets.torch import values
from hpxfer.recipe import EXPERTS, Recipe
from hpxfer.scaling.shape import Shape


def names(recipe: Recipe, shape: Shape) -> Sequence[Named]:
    """Return the names of a Mixtral of transformers 5, or of a Llama without experts.

    Raises HpxferError for a shape that neither has.
    """
    if shape.num_shared or (shape.num_experts and shape.dense_width):
        raise HpxferError(
            "--names: must be given for transformers and a model with shared experts or some dense layers, got none; "
            "hpxfer.export.write_names(model, path) writes them"
        )
    ffn = ["gate.weight", "experts.gate_up_proj", "experts.down_proj"]
    attention = [f"self_attn.{name}_proj.weight" for name in "qkvo"]
    norms = ["input_layernorm.weight", "post_attention_layernorm.weight"]
    return model_names(
        shape,
        "model.layers.{}.",
        start=["model.embed_tokens.weight"],
        common=attention,
        dense=[*(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")), *norms],
        experts=[*(f"mlp.{name}" for name in ffn), *norms],
        end=["model.norm.weight", *([] if recipe.file.model.tied_embeddings else ["lm_head.weight"])],
    )


def granite(plan: Plan) -> dict[str, float]:
    """Return the settings with which a Granite or GraniteMoe config holds the forward multipliers, or nothing.

    Such a model has one factor for both branches, multiplies the embedding, and divides the logits. Its gates are
    normalized softmaxes.
    """
    forward, readout = plan.forward, plan.forward.get("readout", 1.0)
    experts = [forward[key] for key in EXPERTS if key in forward]
    branches = {forward[key] for key in ("attn_out", "dense_out", "shared_out") if key in forward}
    if experts:
        if plan.recipe.file.model.gate != "normalized_softmax":
            return {}
        branches.add(math.prod(experts))
    if len(branches) != 1 or "attn_logits" not in forward or forward.get("router", 1.0) != 1.0 or not readout:
        return {}
    return {
        "attention_multiplier": forward["attn_logits"],
        "residual_multiplier": branches.pop(),
        "logits_scaling": 1.0 / readout,
        "embedding_multiplier": forward.get("embedding", 1.0),
    }


def files(plan: Plan, lacks: Sequence[Lack]) -> dict[str, str]:
    """Return the module."""
    found, training = plan.phases, plan.recipe.file.training
    arguments = {
        **({"max_steps": found.steps} if found else {}),
        **({"max_grad_norm": training.gradient_clip or 0.0} if training else {}),
        **({"bf16": training.precision == "bfloat16"} if training else {}),
    }
    return source(
        plan,
        lacks,
        ["torch", "transformers"],
        {**values(plan), "training_arguments": arguments, "granite_config": granite(plan)},
    )


TRANSFORMERS = ExportTarget(
    name="transformers",
    doc="a Python module with a Trainer of transformers that makes the recipe's optimizer and schedule",
    optimizers=("adamw", "sgd"),
    names=names,
    lacks=other_lacks,
    files=files,
)
