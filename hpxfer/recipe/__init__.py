"""Recipes: tuned base HPs as a small file, and what they give a torch model of the user's own. Imports torch late."""

from hpxfer.recipe.attach import Attached, ByHandWarning
from hpxfer.recipe.build import recipe_from_results, recipe_of
from hpxfer.recipe.dimensions import shape_of
from hpxfer.recipe.explain import ModelExplanation
from hpxfer.recipe.proposed import ProposedRoles, roles
from hpxfer.recipe.reach import OutOfRangeWarning
from hpxfer.recipe.recipe import Recipe
from hpxfer.recipe.schedule import check_lr_ratios, scheduler
from hpxfer.recipe.watch import module_outputs
from hpxfer.recipe.write import write_recipe

__all__ = [
    "Attached",
    "ByHandWarning",
    "ModelExplanation",
    "OutOfRangeWarning",
    "ProposedRoles",
    "Recipe",
    "check_lr_ratios",
    "module_outputs",
    "recipe_from_results",
    "recipe_of",
    "roles",
    "scheduler",
    "shape_of",
    "write_recipe",
]
