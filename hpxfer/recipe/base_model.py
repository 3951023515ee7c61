"""The base model of a recipe: what its file says, and what follows from the family that a sweep trained. Pure."""

from __future__ import annotations

from typing import Any

from hpxfer.spec.recipe_file import ModelPart, RecipeFile

# What the models of a family are, beside what a sweep file may choose. Recipes of earlier versions leave it out.
BUILT_IN: dict[str, dict[str, Any]] = {
    "gpt": {
        "norm": "layernorm",
        "positions": "learned",
        "qk_norm": False,
        "attention_ratio": 1.0,
        "embedding_scale": 1.0,
        "bias_rule": "proportional",
        "balance_loss": "none",
    }
}


def base_model(file: RecipeFile) -> ModelPart:
    """Return the base model. A recipe made by hand knows only what its user said."""
    known = BUILT_IN.get(file.family, {}) if file.provenance.made == "by a sweep" else {}
    missing = {name: value for name, value in known.items() if getattr(file.model, name) is None}
    return file.model.model_copy(update=missing)
