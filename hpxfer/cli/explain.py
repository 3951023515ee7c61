"""`hpxfer recipe explain`: what every role gets at a shape, and why. `hpxfer explain` is the same command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from hpxfer.cli.options import (
    AsJson,
    Conventions,
    File,
    Optimizer,
    Parameterization,
    Plugins,
    Text,
    column,
    excludes,
    read_conventions,
)
from hpxfer.cli.output import answer, say, warn
from hpxfer.errors import HpxferError


def explain(
    parameterization: Parameterization = None,
    optimizer: Optimizer = None,
    base: Annotated[File, Option(help="A JSON file with the base shape.")] = None,
    target: Annotated[File, Option(help="A JSON file with the target shape.")] = None,
    sweep: Annotated[File, Option(help="Take base, HPs and initialization from a sweep file.")] = None,
    recipe: Annotated[File, Option(help="Take base, HPs and initialization from a recipe.")] = None,
    model: Annotated[File, Option(help="With --recipe: the config.json of a model of transformers.")] = None,
    names: Annotated[File, Option(help="With --model: roles of parameters or patterns, as for export.")] = None,
    convention: Conventions = None,
    gate: Annotated[Text, Option(help="The gate of the model, e.g. sigmoid; only warnings depend on it.")] = None,
    tied: Annotated[bool | None, Option("--tied/--untied", help="Of the model; only warnings depend on it.")] = None,
    strict: Annotated[bool, Option("--strict", help="Refuse a target that the table's source does not cover.")] = False,
    list_all: Annotated[bool, Option("--list", help="List the parameterizations and their conventions.")] = False,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Show the init std, LR, eps, weight decay and forward multiplier of every role at a shape, and their sources.

    A shape is a JSON file such as {"width": 128, "depth": 4, "num_experts": 8, "num_active": 2, "expert_width": 128,
    "head_dim": 32}. A dense model has dense_width in place of the experts. The keys num_shared, shared_width,
    num_groups, batch_tokens and steps are optional.

    \b
    Examples:
      hpxfer recipe explain --list
      hpxfer recipe explain --sweep sweeps/quickstart.yaml
      hpxfer recipe explain --parameterization completep-moe --base base.json --target target.json --strict
      hpxfer recipe explain --recipe results/quickstart/recipe.yaml --model mixtral/config.json
      hpxfer recipe explain --plugin ./mine.py --parameterization mine --base base.json --target target.json
    """
    from hpxfer.prediction import explain_files, explain_recipe, explain_sweep
    from hpxfer.registry import registry
    from hpxfer.scaling.coverage import ModelFacts
    from hpxfer.scaling.explain import list_parameterizations, parameterizations_to_dict, require_covered

    if list_all:
        answer(parameterizations_to_dict, list_parameterizations, as_json=as_json)
        return
    if sweep is not None and recipe is not None:
        raise HpxferError("give one of --sweep and --recipe, got both")
    if model is not None:
        excludes("--model", sweep=sweep, base=base, parameterization=parameterization, optimizer=optimizer)
        excludes("--model", convention=convention)
        _of_model(model, recipe, target, names, as_json=as_json)
        return
    if names is not None:
        raise HpxferError("--names: goes with --model")
    conventions, used = read_conventions(convention), column(optimizer)
    if gate is not None:
        registry("gate").get(gate, "--gate")
    if sweep is not None or recipe is not None:
        excludes("--sweep" if sweep else "--recipe", base=base, gate=gate, tied=None if tied is None else "given")
    if sweep is not None:
        found = explain_sweep(sweep, parameterization, target, conventions, used)
    elif recipe is not None:
        excludes("--recipe", convention=convention)
        found = explain_recipe(recipe, parameterization, target, used)
    elif parameterization is None or base is None or target is None:
        raise HpxferError(
            "explain needs --parameterization, --base and --target, or --sweep, or --recipe; --list shows the names"
        )
    else:
        facts = ModelFacts(gate=gate, tied_embeddings=tied)
        found = explain_files(parameterization, base, target, conventions, used, facts)
    if strict:
        require_covered(found.roles)
    answer(found.to_dict, found.text, as_json=as_json)
    if found.note:
        say(f"note: {found.note}", err=True)


def _of_model(model: Path, recipe: Path | None, target: Path | None, names: Path | None, *, as_json: bool) -> None:
    """Explain what a recipe gives a model. Warnings go to stderr."""
    from hpxfer.export import read_names
    from hpxfer.recipe import Recipe, explain_config
    from hpxfer.scaling.shape import load_shape

    if recipe is None:
        raise HpxferError("--model: goes with --recipe, and with --target for a model whose shape is not known")
    roles = [(one.name, one.role) for one in read_names(names) if one.role] if names else []
    shape = None if target is None else load_shape(target)
    found, problems = explain_config(Recipe.load(recipe), model, shape, roles)
    warn(problems)
    answer(found.to_dict, lambda: str(found), as_json=as_json)
