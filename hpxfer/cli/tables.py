"""Commands about parameterizations: `hpxfer explain|check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.app import MISSED, AsJson, Name, app, column, say, written
from hpxfer.errors import HpxferError


@app.command()
def explain(
    parameterization: Name = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adam or sgd; default: the sweep's or recipe's, or adam.")
    ] = None,
    base: Annotated[Path | None, typer.Option(help="JSON file with the base shape.")] = None,
    target: Annotated[Path | None, typer.Option(help="JSON file with the target shape.")] = None,
    sweep: Annotated[Path | None, typer.Option(help="Take base, HPs and initialization from a sweep file.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Take them from a recipe.")] = None,
    convention: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of the table; may be repeated.")] = None,
    gate: Annotated[
        str | None, typer.Option(help="sigmoid, softmax, normalized_sigmoid or normalized_softmax, for the warnings.")
    ] = None,
    tied: Annotated[bool | None, typer.Option("--tied/--untied", help="Embeddings, for the warnings.")] = None,
    strict: Annotated[bool, typer.Option(help="Refuse (exit code 2) a target that the source does not cover.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List the parameterizations and their conventions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which init std, LR, eps, weight decay and forward multiplier every role gets at a shape, and why.

    A shape is a JSON file such as {"width": 128, "depth": 4, "num_experts": 8, "num_active": 2, "expert_width": 128,
    "head_dim": 32}; a dense model gives dense_width instead of the experts; num_shared, shared_width, num_groups,
    batch_tokens and steps may stand in it too.

    \b
    Examples:
      hpxfer explain --list
      hpxfer explain --sweep sweeps/quickstart.yaml
      hpxfer explain --parameterization completep-moe --base base.json --target target.json --strict
    """
    from hpxfer.cli.explain_source import from_files, from_recipe, from_sweep, model_facts, read_conventions
    from hpxfer.scaling.explain import explain as explain_table
    from hpxfer.scaling.explain import list_parameterizations, parameterizations_to_dict, require_covered

    if list_all:
        say(json.dumps(parameterizations_to_dict()) if as_json else list_parameterizations())
        return
    if sweep is not None and recipe is not None:
        raise HpxferError("give one of --sweep and --recipe, got both")
    conventions, facts = read_conventions(convention or ()), model_facts(gate, tied)
    if sweep is not None:
        source = from_sweep(sweep, parameterization, base, target, conventions, facts)
    elif recipe is not None:
        source = from_recipe(recipe, parameterization, base, target, conventions, facts)
    else:
        source = from_files(parameterization, base, target, conventions, facts)
    used = column(optimizer) or source.optimizer
    found = explain_table(source.choice, source.base, source.target, used, values=source.values, facts=source.facts)
    if strict:
        require_covered(found)
    say(json.dumps(found.to_dict()) if as_json else found.table())
    if source.note:
        say(f"note: {source.note}", err=True)


@app.command()
def check(
    parameterization: Name = None,
    convention: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of the table; may be repeated.")] = None,
    axis: Annotated[list[str] | None, typer.Option(help="May be repeated; default: the sweep's or table's.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam or sgd; default: the sweep's, or adam if there.")] = None,
    sweep: Annotated[Path | None, typer.Option(help="Check with its model, data, HPs and shapes.")] = None,
    points: Annotated[str | None, typer.Option(help="Values along one axis, e.g. 32,64,128,256.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps; default: 6.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds, trained together; default: 6.")] = None,
    architecture: Annotated[str, typer.Option(help="gpt, or block: the papers' minimal MLP block.")] = "gpt",
    output: Annotated[Path | None, typer.Option(help="Write figures, check.txt and check.json to this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove on small models that features move as a table predicts: slopes against scale, with a verdict each.

    Exit code 1 if a prediction is missed, or if nothing was shown. An axis is what moves the model's shape: width,
    depth, experts, active, capacity, granularity, expert_ratio, expert_width, shared, groups, dense_ratio, regime-i
    to regime-iii.

    \b
    Examples:
      hpxfer check --parameterization completep-moe --axis width
      hpxfer check --sweep sweeps/quickstart.yaml --points 32,64,128,256
    """
    from hpxfer.cli.explain_source import read_conventions
    from hpxfer.coordinates.command import check as run_check

    found, files = run_check(
        *(parameterization, read_conventions(convention or ()), axis, column(optimizer), sweep, points),
        *(steps, seeds, architecture, output),
    )
    if as_json:
        say(json.dumps({**found.to_dict(), "files": [str(one) for one in files]}))
    else:
        say(found.table() + (f"\n\n{written(files)}" if files else ""))
    if not found.passed:
        raise typer.Exit(MISSED)
