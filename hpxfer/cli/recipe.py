"""`hpxfer recipe`: the tuned base HPs as a file for the user's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Base, Folder, Parameterization
from hpxfer.cli.output import say, warn, written


def recipe(
    results: Folder,
    parameterization: Parameterization = None,
    base: Base = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The file; default: recipe.yaml in the results folder, NAME-recipe.yaml here for a URI."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the tuned base HPs as a recipe for your own model.

    Example: hpxfer recipe results/quickstart --parameterization completep-moe
    """
    from hpxfer.recipe import recipe_of, write_recipe
    from hpxfer.results import load_results
    from hpxfer.spec.recipe_file import doubts
    from hpxfer.storage.uri import is_uri

    outcome = load_results(results)
    if base is not None:
        outcome = outcome.from_base(base)
    made = recipe_of(outcome, parameterization)
    default = Path(f"{outcome.spec.name}-recipe.yaml") if is_uri(results) else outcome.folder / "recipe.yaml"
    path = output or default
    write_recipe(made, path)
    warn((*outcome.problems, *doubts(made.file)))
    say(json.dumps({"recipe": str(path)}) if as_json else f"{made.dump()}\n{written([path])}")


RECIPE = Command(name="recipe", run=recipe)
