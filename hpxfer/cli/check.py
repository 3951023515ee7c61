"""`hpxfer check`: do features scale as a table predicts, and does a trainer do what its sweep says?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from hpxfer.cli.options import (
    AsJson,
    Conventions,
    File,
    Optimizer,
    Parameterization,
    Plugins,
    Text,
    Texts,
    Whole,
    column,
    excludes,
    pairs,
    read_conventions,
)
from hpxfer.cli.output import CHECK_MISSED, answer
from hpxfer.errors import HpxferError, shown

if TYPE_CHECKING:
    from hpxfer.coordinates.report import CheckReport

LEAST_STEPS = 5  # of --trainer: a warm-up, a peak, a decay and an end


def check(
    parameterization: Parameterization = None,
    convention: Conventions = None,
    axis: Annotated[Texts, Option(help="What grows; may be repeated; default: the sweep's or the table's.")] = None,
    optimizer: Optimizer = None,
    sweep: Annotated[File, Option(help="Take model, data, HPs and shapes from this sweep.")] = None,
    trainer: Annotated[
        File, Option(metavar="SWEEP", help="Check the trainer of this sweep: its receipts, seeds.")
    ] = None,
    results: Annotated[Text, Option(help="Of --trainer: the folder or URI that holds the sweep's own folder.")] = None,
    module: Annotated[Text, Option(metavar="PKG.MOD:BUILD", help="Check your own torch module.")] = None,
    recipe: Annotated[File, Option(help="Of --module: the recipe that it trains by.")] = None,
    base: Annotated[File, Option(help="Of --module without a recipe: a JSON file with the base shape.")] = None,
    hp: Annotated[Texts, Option(metavar="NAME=NUMBER", help="Of --module without a recipe: a base HP.")] = None,
    points: Annotated[Text, Option(help="Values along one axis, e.g. 32,64,128,256.")] = None,
    steps: Annotated[Whole, Option(help="Optimizer steps; default: 6, or 5 of --module, or 20 of --trainer.")] = None,
    seeds: Annotated[Whole, Option(help="Seeds, trained together; default: 6, or 3 of --module.")] = None,
    architecture: Annotated[
        Text, Option(help="gpt, dit, or mlp, that of the papers; default: the sweep's or gpt.")
    ] = None,
    gate: Annotated[Text, Option(help="Of mlp: sigmoid, softmax or normalized_softmax; of --module any.")] = None,
    activation: Annotated[Text, Option(help="Of mlp's experts: linear, relu, gelu or tanh; default: linear.")] = None,
    matrices: Annotated[Whole, Option(help="Of an expert of mlp: 1 or 2; default: 2.")] = None,
    top_k: Annotated[Whole, Option(help="Active experts of mlp at every shape; default: all.")] = None,
    bias: Annotated[Text, Option(help="Of mlp's router: none, fixed, schedule, learned or learned_sgd.")] = None,
    output: Annotated[File, Option(help="Write figures, check.txt and check.json to this folder.")] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Train small models of growing size, and compare how their features scale with what a table predicts.

    Each quantity gets a slope against scale and a verdict. A second answer says whether features and their changes
    keep their size as the model grows, whatever the table predicts. A table must pass both: the model follows the
    slopes that its rows imply, and features keep their size. The exit code is 1 if the table does not pass.

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
      hpxfer check --parameterization complete-mue --architecture dit --axis active
      hpxfer check --sweep sweeps/quickstart.yaml --points 32,64,128,256
      hpxfer check --plugin ./mine.py --parameterization mine
      hpxfer check --parameterization mssp-ii --architecture mlp --convention readout_init=zero --seeds 12
      hpxfer check --trainer sweep.yaml --steps 20
      hpxfer check --module train.model:build --recipe results/quickstart/recipe.yaml
    """
    of_mlp: dict[str, Any] = {"activation": activation, "matrices": matrices, "top_k": top_k, "bias": bias}
    of_module = {"recipe": recipe, "base": base, "hp": hp}
    of_table = {"parameterization": parameterization, "convention": convention, "optimizer": optimizer, "gate": gate}
    if trainer is not None:
        excludes("--trainer", sweep=sweep, module=module, **of_table, **of_mlp, **of_module, architecture=architecture)
        excludes("--trainer", axis=axis, points=points, seeds=seeds, output=output)
        _check_trainer(trainer, steps, results, plugin or [], as_json=as_json)
        return
    excludes("a check without --trainer", results=results)
    conventions = read_conventions(convention)
    asked: dict[str, Any] = {"points": _numbers(points), "steps": steps, "seeds": seeds}
    run: Callable[..., CheckReport]
    if module is not None:
        from hpxfer.coordinates.own.checking import check_own
        from hpxfer.coordinates.own.load import given_recipe, load_own, own_recipe

        excludes("--module", sweep=sweep, architecture=architecture, **of_mlp)
        if axis is not None and len(axis) > 1:
            raise HpxferError(f"--axis: a module is checked along one axis at a time, got {', '.join(axis)}")
        hps = pairs(hp, "--hp", float)
        made = given_recipe(recipe, parameterization, conventions, optimizer, base, hps, gate)
        own, its = load_own(module, Path())
        run, asked["axis"] = partial(check_own, own, made or own_recipe(its, module)), axis[0] if axis else None
    else:
        from hpxfer.coordinates.checking import check as check_table
        from hpxfer.coordinates.mlp.own import options_of
        from hpxfer.prediction import of_sweep
        from hpxfer.recipe import load_sweep
        from hpxfer.scaling.evaluate import parameterization as by_name

        excludes("a check without --module", **of_module)
        spec = None if sweep is None else load_sweep(sweep)
        if spec is None and parameterization is None:
            raise HpxferError("check needs --parameterization or --sweep; hpxfer explain --list shows the names")
        if spec is None:
            choice = by_name(str(parameterization), conventions)
        else:
            choice, spec = of_sweep(spec, parameterization, conventions)
        run = partial(check_table, choice, sweep=spec, options=options_of(gate=gate, **of_mlp))
        asked |= {"axes": axis, "optimizer": column(optimizer), "architecture": architecture}
    _check(run, asked, output, as_json=as_json)


def _check(run: Callable[..., CheckReport], asked: dict[str, Any], output: Path | None, *, as_json: bool) -> None:
    """Run a check, write its files, and end with 1 if it failed. Show on stderr what is being trained."""
    from rich.console import Console

    from hpxfer.coordinates.write import WHAT, write_check
    from hpxfer.host import make_folder

    if output is not None:
        make_folder(output, WHAT)  # fails now, and not after minutes of training
    with Console(stderr=True).status("") as status:
        found = run(on_shape=status.update, **{name: value for name, value in asked.items() if value is not None})
    _say(found, [] if output is None else write_check(found, output), as_json=as_json)


def _numbers(text: str | None) -> tuple[float, ...] | None:
    """Return the numbers in a text such as `32,64,128`, in ascending order."""
    try:
        return None if text is None else tuple(sorted({float(number) for number in text.split(",")}))
    except ValueError:
        raise HpxferError(f"--points: must be numbers with commas between them, got {shown(text)}") from None


def _check_trainer(sweep: Path, steps: int | None, results: str | None, plugins: list[str], *, as_json: bool) -> None:
    from hpxfer.driver import check_trainer, prepare

    if steps is not None and steps < LEAST_STEPS:
        raise HpxferError(f"--steps: must be at least {LEAST_STEPS} with --trainer, got {steps}")
    found = check_trainer(prepare(sweep, results=results, plugins=plugins), steps=steps)
    _say(found, [found.file], as_json=as_json)


def _say(found: Any, files: Sequence[Path], *, as_json: bool) -> None:
    """Print what was found, and end with 1 if it did not pass."""
    answer(found.to_dict, found.table, as_json=as_json, files=files)
    if not found.passed:
        raise typer.Exit(CHECK_MISSED)
