"""Commands that read results: `hpxfer report|recipe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.app import AsJson, Folder, Name, app, say, warn, written

# The folder of a report on results that lie in storage.
REPORT = Path("report")
Hp = Annotated[str | None, typer.Option("--hp", help="The HP to judge; default: the sweep's.")]
Loss = Annotated[str | None, typer.Option("--loss", help="validation or final_window; default: the sweep's.")]


@app.command()
def report(
    results: Annotated[list[str], typer.Argument(metavar="RESULTS...", help="One or several results folders or URIs.")],
    output: Annotated[
        Path | None,
        typer.Option(help="Where files go; default: the results folder, of several the one above, of a URI `report`."),
    ] = None,
    hp: Hp = None,
    loss: Loss = None,
    form: Annotated[str, typer.Option("--format", help="html, md, json, or text for the verdict alone.")] = "html",
    write_followup: Annotated[
        Path | None,
        typer.Option(help="Write the sweep that decides what is undecided, or adds the control, to this new file."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether the HP transfers, and write it as one page with figures, tables and every trial.

    A half-finished sweep gives what can be said and says what is missing.

    \b
    Examples:
      hpxfer report results/quickstart --open
      hpxfer report results/width results/depth --output report
      hpxfer report results/width --write-followup sweeps/more.yaml
    """
    from hpxfer.report.command import report as write_report
    from hpxfer.storage.uri import is_uri
    from hpxfer.store.location import results_here

    folders = [results_here(one) for one in results]
    if output is None and any(map(is_uri, results)):
        output = REPORT  # what is in storage is read, not written
    found = write_report(folders, output=output, hp=hp, loss=loss, form=form, followup=write_followup, show=show)
    warn(found.warnings)
    say(json.dumps(found.to_dict()) if as_json else f"{found.text()}\n\n{written(list(found.files))}")


@app.command()
def recipe(
    results: Folder,
    parameterization: Name = None,
    output: Annotated[
        Path | None, typer.Option(help="Default: recipe.yaml in the results folder; of a URI, NAME-recipe.yaml here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the tuned base HPs as a recipe for your own model.

    Example: hpxfer recipe results/quickstart --parameterization completep-moe
    """
    from hpxfer.recipe import recipe_of, write_recipe
    from hpxfer.results import load_results
    from hpxfer.storage.uri import is_uri

    outcome = load_results(results)
    made = recipe_of(outcome, parameterization)
    default = Path(f"{outcome.spec.name}-recipe.yaml") if is_uri(results) else outcome.folder / "recipe.yaml"
    path = output or default
    write_recipe(made, path)
    warn(outcome.problems)
    say(json.dumps({"recipe": str(path)}) if as_json else f"{made.dump()}\n{written([path])}")
