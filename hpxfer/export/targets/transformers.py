"""`transformers`: a Python module with a Trainer whose optimizer and schedule are the recipe's.

The `optimizers=` of a Trainer are made before it wraps the model. So the module overrides `create_optimizer` and
`create_scheduler`, which the Trainer calls behind the wrapping.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpxfer.errors import HpxferError
from hpxfer.export.names import Named
from hpxfer.export.plan import Lack, Plan, in_layers, named, other_lacks
from hpxfer.export.source import assigned, header
from hpxfer.export.target import ExportTarget
from hpxfer.export.targets.torch import body
from hpxfer.recipe import Recipe
from hpxfer.recipe.forward_hooks import EXPERTS
from hpxfer.scaling.shape import Shape

TRAINER = '''

class HpxferTrainer(Trainer):
    """A Trainer with the recipe's parameter groups{and_schedule}. Call prepare(model) before it is made."""

    def create_optimizer(self, model=None):
        """Return the optimizer of the recipe, once."""
        if self.optimizer is None:
            self.optimizer = optimizer(self.model if model is None else model)
        return self.optimizer
'''
SCHEDULER = '''
    def create_scheduler(self, num_training_steps, optimizer=None):
        """Return the schedule of the recipe, once."""
        if self.lr_scheduler is None:
            self.lr_scheduler = scheduler(self.optimizer if optimizer is None else optimizer)
            self._created_lr_scheduler = True
        return self.lr_scheduler
'''


def names(recipe: Recipe, shape: Shape) -> Sequence[Named]:
    """Return the names of a Mixtral of transformers 5, or of a Llama without experts.

    Raises HpxferError for a shape that neither has.
    """
    if shape.num_shared or (shape.num_experts and shape.dense_width):
        raise HpxferError(
            "--names: must be given for transformers and a model with shared experts or some dense layers, got none; "
            "hpxfer.export.write_names(model, path) writes them"
        )
    of_layer = [f"self_attn.{name}_proj.weight" for name in "qkvo"]
    if shape.num_experts:
        of_layer += ["mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    else:
        of_layer += [f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    of_layer += ["input_layernorm.weight", "post_attention_layernorm.weight"]
    layers = dict.fromkeys(range(shape.depth), of_layer)
    head = [] if recipe.file.model.tied_embeddings else ["lm_head.weight"]
    return named(
        ["model.embed_tokens.weight", *in_layers(shape, layers, "model.layers.{}."), "model.norm.weight", *head]
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
    text = header(
        plan,
        "transformers: a Trainer with the recipe's optimizer and schedule, written by hpxfer.",
        "prepare(model), then HpxferTrainer(model, TrainingArguments(..., **training_arguments), ...).train(). "
        "granite_config holds the forward multipliers as settings of a Granite or GraniteMoe config, if it can: then "
        "call recipe.attach with by_hand=list(FORWARD) in place of prepare's.",
        lacks,
    )
    settings = [
        assigned("training_arguments", arguments),
        assigned("granite_config", granite(plan)),
    ]
    trainer = TRAINER.replace("{and_schedule}", " and schedule" if found else "") + (SCHEDULER if found else "")
    imports = "\nfrom transformers import Trainer\n"
    return {"hpxfer_transformers.py": "".join([text, imports, body(plan), "\n\n", "\n".join(settings), trainer])}


TRANSFORMERS = ExportTarget(
    name="transformers",
    doc="a Python module with a Trainer of transformers that makes the recipe's optimizer and schedule",
    optimizers=("adamw", "sgd"),
    names=names,
    lacks=other_lacks,
    files=files,
)
