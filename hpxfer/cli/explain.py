"""`hpxfer explain`: what every role gets at a shape, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Convention, Parameterization, Plugins, column, load_plugins
from hpxfer.cli.output import say, warn
from hpxfer.errors import HpxferError
from hpxfer.host.output import aligned

if TYPE_CHECKING:
    from hpxfer.model.parameters import ParameterSpec


def explain(
    parameterization: Parameterization = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adamw or sgd; default: the sweep's or recipe's, or adamw.")
    ] = None,
    base: Annotated[Path | None, typer.Option(help="A JSON file with the base shape.")] = None,
    target: Annotated[Path | None, typer.Option(help="A JSON file with the target shape.")] = None,
    sweep: Annotated[Path | None, typer.Option(help="Take base, HPs and initialization from a sweep file.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Take base, HPs and initialization from a recipe.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="With --recipe: the config.json of a model of transformers. Shows what each tensor gets."),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(help="With --model: roles of its parameters or of patterns such as *.wq.weight, as for export."),
    ] = None,
    convention: Convention = None,
    gate: Annotated[
        str | None, typer.Option(help="The gate of the model, e.g. sigmoid; only warnings depend on it.")
    ] = None,
    tied: Annotated[
        bool | None, typer.Option("--tied/--untied", help="Whether embeddings are tied; only warnings depend on it.")
    ] = None,
    strict: Annotated[
        bool, typer.Option(help="Refuse a target that the table's source does not cover (exit code 2).")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List the parameterizations and their conventions.")] = False,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Show the init std, LR, eps, weight decay and forward multiplier of every role at a shape, and their sources.

    A shape is a JSON file such as {"width": 128, "depth": 4, "num_experts": 8, "num_active": 2, "expert_width": 128,
    "head_dim": 32}. A dense model has dense_width in place of the experts. The keys num_shared, shared_width,
    num_groups, batch_tokens and steps are optional.

    \b
    Examples:
      hpxfer explain --list
      hpxfer explain --sweep sweeps/quickstart.yaml
      hpxfer explain --parameterization completep-moe --base base.json --target target.json --strict
      hpxfer explain --recipe results/quickstart/recipe.yaml --model mixtral/config.json
      hpxfer explain --plugin ./mine.py --parameterization mine --base base.json --target target.json
    """
    from hpxfer.cli.explain_source import from_files, from_recipe, from_sweep, model_facts, read_conventions
    from hpxfer.scaling.explain import explain as explain_table
    from hpxfer.scaling.explain import list_parameterizations, parameterizations_to_dict, require_covered

    load_plugins(plugin)
    if list_all:
        say(json.dumps(parameterizations_to_dict()) if as_json else list_parameterizations())
        return
    if sweep is not None and recipe is not None:
        raise HpxferError("give one of --sweep and --recipe, got both")
    if model is not None:
        _of_model(
            recipe, model, target, names, as_json=as_json, others=(sweep, base, parameterization, optimizer, convention)
        )
        return
    if names is not None:
        raise HpxferError("--names: goes with --model")
    conventions, facts = read_conventions(convention or ()), model_facts(gate, tied)
    if sweep is not None:
        source = from_sweep(sweep, parameterization, base, target, conventions, facts)
    elif recipe is not None:
        source = from_recipe(recipe, parameterization, base, target, conventions, facts)
    else:
        source = from_files(parameterization, base, target, conventions, facts)
    used = column(optimizer) or source.optimizer
    found = explain_table(
        *(source.choice, source.base, source.target, used),
        values=source.values,
        facts=source.facts,
        roles=source.roles,
    )
    if strict:
        require_covered(found)
    if as_json:
        tensors = [{"name": one.name, "role": one.role, "size": one.size} for one in source.tensors]
        say(json.dumps({**found.to_dict(), **({"tensors": tensors} if tensors else {})}))
    else:
        say("\n\n".join([found.table(), *_tensor_table(source.tensors)]))
    if source.note:
        say(f"note: {source.note}", err=True)


def _tensor_table(tensors: Sequence[ParameterSpec]) -> list[str]:
    """Return the role, size and number of each tensor as one aligned text; empty without tensors."""
    if not tensors:
        return []
    rows = [
        (one.name, one.role, "x".join(map(str, one.size)), f"in {one.layers}" if one.blocks else "") for one in tensors
    ]
    lines = aligned([("tensor", "role", "size", "blocks"), *rows])
    return ["\n".join(["Tensors of the model at the target", *(line.rstrip() for line in lines)])]


def _of_model(
    recipe: Path | None,
    model: Path,
    target: Path | None,
    names: Path | None,
    *,
    as_json: bool,
    others: tuple[Any, ...],
) -> None:
    """Explain what a recipe gives a model. Warnings go to stderr."""
    from hpxfer.cli.explain_model import explain_model

    if recipe is None or any(other is not None for other in others):
        raise HpxferError("--model: goes with --recipe, and with --target for a model whose shape is not known")
    found, problems = explain_model(recipe, model, target, names)
    warn(problems)
    say(json.dumps(found.to_dict()) if as_json else str(found))


EXPLAIN = Command(name="explain", run=explain)
