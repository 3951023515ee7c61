"""`hpxfer check`: do features scale as a table predicts, and does a trainer do what its sweep says?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Convention, Parameterization, Plugins, column, load_plugins
from hpxfer.cli.output import CHECK_MISSED, say, written
from hpxfer.errors import HpxferError

LEAST_STEPS = 5  # a warm-up, a peak, a decay and an end


def check(
    parameterization: Parameterization = None,
    convention: Convention = None,
    axis: Annotated[
        list[str] | None, typer.Option(help="What grows; may be repeated; default: the sweep's or the table's axes.")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adamw or sgd; default: the sweep's, or adamw if the table has it.")
    ] = None,
    sweep: Annotated[Path | None, typer.Option(help="Take model, data, HPs and shapes from this sweep.")] = None,
    trainer: Annotated[
        Path | None,
        typer.Option(metavar="SWEEP", help="Check the trainer of this sweep: receipts, seeds, repetition, and more."),
    ] = None,
    results: Annotated[
        str | None, typer.Option(help="Of --trainer: the folder or URI that holds the sweep's own folder.")
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(metavar="PKG.MOD:BUILD", help="Check your own torch module; PKG.MOD has batch and loss_fn too."),
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="Of --module: the recipe that it trains by.")] = None,
    base: Annotated[
        Path | None, typer.Option(help="Of --module without a recipe: a JSON file with the base shape.")
    ] = None,
    hp: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Of --module without a recipe: a base HP; may be repeated."),
    ] = None,
    points: Annotated[str | None, typer.Option(help="Values along one axis, e.g. 32,64,128,256.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of optimizer steps; default: 6, 5 of --module, or 20 of --trainer.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds, trained together; default: 6, or 3 of --module.")
    ] = None,
    architecture: Annotated[
        str | None, typer.Option(help="gpt, or mlp: the MLP mixture of the papers; default: the sweep's, or gpt.")
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option(help="Of mlp: sigmoid, softmax or normalized_softmax; of --module any; default: sigmoid."),
    ] = None,
    activation: Annotated[
        str | None, typer.Option(help="Of mlp's experts: linear, relu, gelu or tanh; default: linear.")
    ] = None,
    matrices: Annotated[int | None, typer.Option(help="Of an expert of mlp: 1 or 2; default: 2.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Active experts of mlp at every shape; default: all.")] = None,
    bias: Annotated[
        str | None,
        typer.Option(help="Of mlp's router: none, fixed, schedule, learned or learned_sgd; default: none."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write figures, check.txt and check.json to this folder.")] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Train small models of growing size, and compare how their features scale with what a table predicts.

    Each quantity gets a slope against scale and a verdict. A second answer says whether features and their changes
    keep their size as the model grows, whatever the table predicts. A table of your own (--plugin) must pass both: the
    model follows the slopes that its rows imply, and features keep their size. A table of hpxfer passes by the
    predictions of its source alone. The exit code is 1 if the table does not pass.

    With --module your own code is trained: build(shape) returns the model, batch(shape) a batch, and
    loss_fn(model, batch) the loss. If PKG.MOD has optimizer(model, shape) too, the check only watches.

    With --trainer short trials of your own trainer are run, and nothing grows but one shape: does it apply the recipe,
    does its seed matter, does it repeat? What they find is stored beside the results. A failed receipt or seed check
    makes every verdict undecided.

    An axis names what grows: width, depth, experts, active, capacity, granularity, expert_ratio, expert_width, shared,
    groups, dense_ratio, regime-i to regime-iii.

    \b
    Examples:
      hpxfer check --parameterization completep-moe --axis width
      hpxfer check --sweep sweeps/quickstart.yaml --points 32,64,128,256
      hpxfer check --plugin ./mine.py --parameterization mine
      hpxfer check --parameterization mssp-ii --architecture mlp --convention readout_init=zero --seeds 12
      hpxfer check --trainer sweep.yaml --steps 20
      hpxfer check --module train.model:build --recipe results/quickstart/recipe.yaml
    """
    if trainer is not None:
        given = (parameterization, convention, axis, optimizer, sweep, module, recipe, base, hp, points, seeds)
        _of_trainer(given, (architecture, gate, activation, matrices, top_k, bias, output))
        load_plugins(plugin)
        _check_trainer(trainer, steps, results, plugin or (), as_json=as_json)
        return
    if results is not None:
        raise HpxferError("--results: belongs to --trainer, got none; add it, or leave this out")
    if module is not None:
        _require_no_other(
            sweep=sweep, architecture=architecture, activation=activation, matrices=matrices, top_k=top_k, bias=bias
        )
    elif wrong := [name for name, value in (("--recipe", recipe), ("--base", base), ("--hp", hp)) if value]:
        raise HpxferError(f"{', '.join(wrong)}: belongs to --module, got none; add it, or leave these out")
    from hpxfer.cli.check_source import check as run_check
    from hpxfer.cli.check_source import mlp_options
    from hpxfer.cli.explain_source import read_conventions

    load_plugins(plugin)
    conventions, asked = read_conventions(convention or ()), column(optimizer)
    if module is not None:
        from hpxfer.cli.check_module import check_module, given_recipe

        own = given_recipe(recipe, parameterization, conventions, optimizer, base, hp or (), gate)
        found, files = check_module(module, own, axis, points, steps, seeds, output)
    else:
        found, files = run_check(
            *(parameterization, conventions, axis, asked, sweep, points),
            *(steps, seeds, architecture, mlp_options(gate, activation, matrices, top_k, bias), output),
        )
    if as_json:
        say(json.dumps({**found.to_dict(), "files": [str(file) for file in files]}))
    else:
        say(found.table() + (f"\n\n{written(files)}" if files else ""))
    if not found.passed:
        raise typer.Exit(CHECK_MISSED)


def _of_trainer(*given: Sequence[object]) -> None:
    """Raise HpxferError for options of the other checks beside --trainer."""
    if any(value is not None and value != [] for values in given for value in values):
        raise HpxferError(
            "--trainer: goes with --steps, --results, --plugin and --json alone, as the sweep says the rest; leave the "
            "other options out"
        )


def _check_trainer(
    sweep: Path, steps: int | None, results: str | None, plugins: Sequence[str], *, as_json: bool
) -> None:
    """Check the trainer of a sweep, and end with 1 if a check failed."""
    from hpxfer.driver import prepare
    from hpxfer.trust import check_trainer

    if steps is not None and steps < LEAST_STEPS:
        raise HpxferError(f"--steps: must be at least {LEAST_STEPS} with --trainer, got {steps}")
    found = check_trainer(prepare(sweep, results=results, plugins=plugins), steps=steps)
    files = [str(file) for file in found.files]
    say(json.dumps({**found.to_dict(), "files": files}) if as_json else f"{found.table()}\n\n{written(files)}")
    if not found.checks.passed:
        raise typer.Exit(CHECK_MISSED)


def _require_no_other(**given: object) -> None:
    """Raise HpxferError for options of the check's own models beside --module."""
    if wrong := [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]:
        raise HpxferError(f"{', '.join(wrong)}: --module brings a model of its own; leave one out")


CHECK = Command(name="check", run=check)
