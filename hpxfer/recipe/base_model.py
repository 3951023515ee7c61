"""The base model of a recipe: what its file says, and what follows from the family that a sweep trained. Pure."""

from __future__ import annotations

from hpxfer.spec.recipe_file import ModelPart, RecipeFile
from hpxfer.spec.recipe_parts import BUILT_IN


def base_model(file: RecipeFile) -> ModelPart:
    """Return the base model. A recipe made by hand knows only what its user said."""
    known = BUILT_IN.get(file.family, {}) if file.provenance.made == "by a sweep" else {}
    missing = {name: value for name, value in known.items() if getattr(file.model, name) is None}
    return file.model.model_copy(update=missing)
