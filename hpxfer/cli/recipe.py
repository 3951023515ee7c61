"""`hpxfer recipe`: the tuned base HPs as a file, and what they give a bigger model, a shape or another trainer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from hpxfer.cli.explain import explain
from hpxfer.cli.options import AsJson, Base, File, Folder, Parameterization, Plugins, Whole
from hpxfer.cli.output import answer, warn, written

if TYPE_CHECKING:
    from hpxfer.results import Results

recipe_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@recipe_app.callback()
def recipe() -> None:
    """Write the tuned base HPs as a recipe, and show or export what they give another model.

    \b
    Examples:
      hpxfer recipe write results/quickstart
      hpxfer recipe explain --recipe results/quickstart/recipe.yaml --target w1024.json
      hpxfer recipe predict results/transfer --target w512.json
      hpxfer recipe export recipe.yaml --to json --shape w1024.json
    """


def _loaded(results: str, base: str | None) -> Results:
    """Return results, as if they had this base if it is named."""
    from hpxfer.results import load_results

    outcome = load_results(results)
    return outcome if base is None else outcome.from_base(base)


@recipe_app.command()
def write(
    results: Folder,
    parameterization: Parameterization = None,
    base: Base = None,
    output: Annotated[File, Option(help="Default: recipe.yaml in the folder, NAME-recipe.yaml for a URI.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the tuned base HPs as a recipe for your own model.

    Example: hpxfer recipe write results/quickstart --parameterization completep-moe
    """
    from hpxfer.host import is_uri
    from hpxfer.recipe import doubts, recipe_of, write_recipe

    outcome = _loaded(results, base)
    made = recipe_of(outcome, parameterization)
    default = Path(f"{outcome.spec.name}-recipe.yaml") if is_uri(results) else outcome.folder / "recipe.yaml"
    write_recipe(made, path := output or default)
    warn((*outcome.problems, *doubts(made.file)))
    answer(lambda: {"recipe": str(path)}, lambda: f"{made.dump()}\n{written([path])}", as_json=as_json)


recipe_app.command()(explain)


@recipe_app.command()
def predict(
    results: Folder,
    target: Annotated[Path, Option(help="A JSON file with the target shape.")],
    tokens: Annotated[Whole, Option(help="Tokens that the target trains on; default: as on its axis.")] = None,
    parameterization: Parameterization = None,
    base: Base = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Predict the loss of a bigger model with an interval, and show what each of its tensors gets.

    The loss is that of the HP which the recipe transfers. It is said for a shape that continues one axis of the sweep,
    up to twice its largest measured scale. Otherwise the text says why it cannot be said, and the HPs remain. A shape
    is a JSON file as in `hpxfer recipe explain`.

    \b
    Examples:
      hpxfer recipe predict results/transfer --target w512.json
      hpxfer recipe predict results/transfer --target w512.json --tokens 153600
      hpxfer recipe predict results/transfer --target w512.json --parameterization sp --json
    """
    from hpxfer.prediction import predict as predict_target
    from hpxfer.scaling.shape import load_shape

    shape, outcome = load_shape(target), _loaded(results, base)
    found = predict_target(outcome, shape, tokens, parameterization)
    warn([*outcome.problems, *found.hps.cautions])
    answer(found.to_dict, lambda: str(found), as_json=as_json)


@recipe_app.command()
def export(
    recipe: Annotated[Path, Argument(metavar="RECIPE", help="A recipe, e.g. results/quickstart/recipe.yaml.")],
    to: Annotated[str, Option(metavar="TARGET", help="megatron, torchtitan, olmo-core, transformers, torch, json.")],
    shape: Annotated[Path, Option(help="A JSON file with the shape of the model to train.")],
    names: Annotated[File, Option(help="Parameters or patterns with a role; default: the trainer's.")] = None,
    partial: Annotated[bool, Option("--partial", help="Write what the trainer can hold, and list the rest.")] = False,
    output: Annotated[Path, Option(help="The folder for the files.")] = Path("hpxfer-export"),
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Write a recipe at a shape as a config of Megatron-LM, torchtitan, OLMo-core, transformers or plain torch.

    hpxfer.json holds every number by parameter and is always written. What a trainer cannot hold is refused, or listed
    under --partial. A shape is a JSON file as in `hpxfer recipe explain`. hpxfer.export.write_names(model, path) writes
    the file of --names.

    \b
    Examples:
      hpxfer recipe export recipe.yaml --to json --shape w1024.json
      hpxfer recipe export recipe.yaml --to megatron --shape w1024.json --partial
      hpxfer recipe export recipe.yaml --to torch --shape w1024.json --names names.json --output conf
    """
    from hpxfer.export import export as export_recipe
    from hpxfer.recipe import Recipe
    from hpxfer.scaling.shape import load_shape

    found = export_recipe(Recipe.load(recipe), to, load_shape(shape), names, partial=partial)
    files = [str(path) for path in found.write(output)]
    warn(found.cautions)
    missing = [f"  {lack.what}\n    {lack.call}" for lack in found.lacks]
    text = "\n".join(["not held; the training script must do it:", *missing] if missing else [])
    data = {"target": to, "not_held": [asdict(lack) for lack in found.lacks]}
    answer(lambda: data, lambda: text, as_json=as_json, files=files)
