"""Recipes: tuned base HPs as a small file, and what they give a user's own torch model. Torch is imported late."""

from hpxfer.recipe.explain import ModelExplanation
from hpxfer.recipe.fitted_range import OtherModelWarning, OutOfRangeWarning
from hpxfer.recipe.forward_hooks import Attached, ByHandWarning
from hpxfer.recipe.from_sweep import recipe_from_results, recipe_of
from hpxfer.recipe.known_models import shape_of
from hpxfer.recipe.module_outputs import module_outputs
from hpxfer.recipe.propose_roles import ProposedRoles, roles
from hpxfer.recipe.recipe import Recipe
from hpxfer.recipe.schedule import check_lr_ratios, scheduler
from hpxfer.recipe.unattached import UnattachedWarning
from hpxfer.recipe.write import write_recipe

__all__ = [
    "Attached",
    "ByHandWarning",
    "ModelExplanation",
    "OtherModelWarning",
    "OutOfRangeWarning",
    "ProposedRoles",
    "Recipe",
    "UnattachedWarning",
    "check_lr_ratios",
    "module_outputs",
    "recipe_from_results",
    "recipe_of",
    "roles",
    "scheduler",
    "shape_of",
    "write_recipe",
]
