"""Recipe parts: what a recipe states of the model and the training of a sweep.

A recipe is made of them, and a sweep that starts from a recipe is compared with it by them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hpxfer.registry import rows_of
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import shape_from_mapping
from hpxfer.spec.mlp import LEARNED
from hpxfer.spec.model_section import MLPSpec, ModelSpec
from hpxfer.spec.recipe_file import ModelPart, RecipeFile
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.ties import ties_at

# Fields of a recipe's `init` -> keys of a sweep's `model`.
INIT = {
    "matrices": "init",
    "matrix_std": "matrix_std",
    "embedding_std": "embedding_std",
    "position_std": "position_std",
    "scale_of": "init_scale_of",
}
# Keys of a sweep's `model` that a recipe has in other sections, or under other names.
_ELSEWHERE = ("family", "like", "base", "balance", "mlp", *INIT.values())
# Keys of `model` that a sweep of the family `user` may give, for the recipe alone.
READ_OF_USER = ("gate", "attention_scale")
# Options of the family mlp among those of a recipe's model.
OWN = "mlp."
# Fields of a recipe's model that say less than the key of the same name in a sweep.
_COARSER = ("biases", "qk_norm")


def model_facts(spec: SweepSpec, choice: Parameterization | None) -> dict[str, Any]:
    """Return field -> value of `ModelPart`, for the base of a sweep under a table."""
    model, shape = spec.model, spec.base_shape
    required = [name for name, field in ModelPart.model_fields.items() if field.is_required()]
    facts = {name: getattr(model, name) for name in required}
    if spec.trainer is not None:  # of a user's own model only this is known
        return {name: facts[name] if name in READ_OF_USER else None for name in required}
    if model.family == "gpt":
        facts |= {
            "embedding_scale": 1.0,
            "norm": model.norm,
            "positions": model.positions,
            "qk_norm": model.qk_norm != "none",
            "biases": model.biases or model.qkv_biases or (model.learned_router_bias and bool(shape.num_experts)),
            "attention_ratio": shape.attention_width / shape.width,
            "bias_rule": model.balance.bias,
            "balance_loss": model.balance.aux,
        }
    alike = [name for name in facts if name not in _COARSER]
    read = rows_of("family").get(model.family).model_keys or ModelSpec.model_fields
    named = [name for name in ModelSpec.model_fields if name in read and name not in (*_ELSEWHERE, *alike)]
    options = {name: getattr(model, name) for name in named}
    own = {} if model.mlp is None else {f"{OWN}{name}": value for name, value in vars(model.mlp).items()}
    load = {"balance.load": model.balance.load} if "balance" in read else {}
    return {**facts, "options": {**options, **own, "ties": ties_at(spec, choice, shape), **load}}


def own_roles(file: RecipeFile) -> frozenset[str] | None:
    """Return the roles of the recipe's own model, if it is a mixture of MLPs; None means any role.

    The recipe of another model serves models with other parts than its base had. A mixture of MLPs has no such parts.
    """
    options = file.model.options or {}
    named = {name[len(OWN) :]: value for name, value in options.items() if name.startswith(OWN)}
    if not named:
        return None
    own, family = MLPSpec().model_copy(update=named), rows_of("family").get(file.family)
    found = frozenset(family.roles(shape_from_mapping(file.base_shape, "the base"), SimpleNamespace(mlp=own)))
    # The rule that balances experts may move a bias without training it. Of a fixed bias there is nothing to set.
    moves = own.router_bias in LEARNED or file.model.bias_rule not in (None, "none")
    return found if moves else found - {"router_bias"}


def training_facts(spec: SweepSpec) -> dict[str, Any]:
    """Return field -> value of `TrainingPart`. The precision may still be `auto`."""
    training = spec.training
    return {
        "steps": spec.steps,
        "batch_tokens": training.batch,
        "schedule": training.schedule,
        "gradient_clip": training.gradient_clip,
        "precision": spec.precision,
    }
