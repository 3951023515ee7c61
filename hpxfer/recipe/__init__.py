"""Recipes: tuned base HPs as a small file, and what they give a torch model of the user's own. Imports torch late."""

from hpxfer.recipe.build import recipe_from_results
from hpxfer.recipe.reach import OutOfRangeWarning
from hpxfer.recipe.recipe import Recipe
from hpxfer.recipe.write import write_recipe

__all__ = ["OutOfRangeWarning", "Recipe", "recipe_from_results", "write_recipe"]
