"""Recipes: tuned base HPs as a small file, and what they give a user's own torch model. Torch is imported late."""

from hpxfer.recipe.assign import BALANCED, names_of_each
from hpxfer.recipe.explain import ModelExplanation, explain_config
from hpxfer.recipe.facts import OtherModelWarning, doubts, own_roles, stated
from hpxfer.recipe.file import RecipeFile, write_recipe
from hpxfer.recipe.forward_hooks import (
    EXPERTS,
    SCALING,
    Attached,
    ByHandWarning,
    MultiplyInput,
    MultiplyOutput,
    Sites,
    UnattachedWarning,
    declared,
    unattached,
)
from hpxfer.recipe.from_sweep import arm_of, recipe_from_results, recipe_of
from hpxfer.recipe.known_models import known_model, known_sites, shape_of
from hpxfer.recipe.match import AT, Roles, globs, match_roles, pairs_of, pairs_of_roles, spelled, templates
from hpxfer.recipe.modules import plain_modules, plain_names, unwrapped
from hpxfer.recipe.own_constants import left_to_multiply
from hpxfer.recipe.probe import embedding_scale, gain_of
from hpxfer.recipe.propose_roles import ProposedRoles, roles, roles_of_names
from hpxfer.recipe.recipe import Recipe, Target, as_shape
from hpxfer.recipe.resolved import OutOfRangeWarning, Resolved, check_covered, out_of_range
from hpxfer.recipe.roles_by_place import Proposal, proposals
from hpxfer.recipe.schedule import check_lr_ratios, scheduler
from hpxfer.recipe.start import load_sweep

__all__ = [
    "AT",
    "BALANCED",
    "EXPERTS",
    "SCALING",
    "Attached",
    "ByHandWarning",
    "ModelExplanation",
    "MultiplyInput",
    "MultiplyOutput",
    "OtherModelWarning",
    "OutOfRangeWarning",
    "Proposal",
    "ProposedRoles",
    "Recipe",
    "RecipeFile",
    "Resolved",
    "Roles",
    "Sites",
    "Target",
    "UnattachedWarning",
    "arm_of",
    "as_shape",
    "check_covered",
    "check_lr_ratios",
    "declared",
    "doubts",
    "embedding_scale",
    "explain_config",
    "gain_of",
    "globs",
    "known_model",
    "known_sites",
    "left_to_multiply",
    "load_sweep",
    "match_roles",
    "names_of_each",
    "out_of_range",
    "own_roles",
    "pairs_of",
    "pairs_of_roles",
    "plain_modules",
    "plain_names",
    "proposals",
    "recipe_from_results",
    "recipe_of",
    "roles",
    "roles_of_names",
    "scheduler",
    "shape_of",
    "spelled",
    "stated",
    "templates",
    "unattached",
    "unwrapped",
    "write_recipe",
]
