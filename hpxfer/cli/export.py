"""`hpxfer export`: a recipe at a shape as files for another trainer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Plugins, load_plugins
from hpxfer.cli.output import say, warn, written


def export(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe, e.g. results/quickstart/recipe.yaml.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TARGET", help="megatron, torchtitan, olmo-core, transformers, torch, json, or a plug-in's."
        ),
    ],
    shape: Annotated[Path, typer.Option(help="A JSON file with the shape of the model to train.")],
    names: Annotated[
        Path | None,
        typer.Option(help="Parameters of your model, or patterns with a role, one per line; default: the trainer's."),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Write what the trainer can hold, and list the calls that do the rest.")
    ] = False,
    output: Annotated[Path, typer.Option(help="The folder for the files.")] = Path("hpxfer-export"),
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Write a recipe at a shape as a config of Megatron-LM, torchtitan, OLMo-core, transformers or plain torch.

    hpxfer.json holds every number by parameter and is always written. What a trainer cannot hold is refused, or listed
    under --partial. A shape is a JSON file as in `hpxfer explain`. hpxfer.export.write_names(model, path) writes the
    file of --names.

    \b
    Examples:
      hpxfer export recipe.yaml --to json --shape w1024.json
      hpxfer export recipe.yaml --to megatron --shape w1024.json --partial
      hpxfer export recipe.yaml --to torch --shape w1024.json --names names.json --output conf
    """
    from hpxfer.export import export as export_recipe
    from hpxfer.recipe import Recipe
    from hpxfer.scaling.shape import load_shape

    load_plugins(plugin)
    found = export_recipe(Recipe.load(recipe), to, load_shape(shape), names, partial=partial)
    paths = found.write(output)
    warn(found.cautions)
    if as_json:
        files, lacks = [str(path) for path in paths], [asdict(lack) for lack in found.lacks]
        say(json.dumps({"target": to, "files": files, "not_held": lacks}))
        return
    missing = [f"  {lack.what}\n    {lack.call}" for lack in found.lacks]
    say("\n".join([*(["not held; the training script must do it:", *missing, ""] if missing else []), written(paths)]))


EXPORT = Command(name="export", run=export)
