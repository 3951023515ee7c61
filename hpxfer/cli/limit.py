"""`hpxfer limit`: what a mixture of MLPs approaches as it grows, solved, and how far trained networks are from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Plugins, load_plugins
from hpxfer.cli.output import say, warn, written
from hpxfer.errors import HpxferError


def limit(
    regime: Annotated[str | None, typer.Option(metavar="I|II|III|residual", help="What is infinite.")] = None,
    parameterization: Annotated[
        str | None, typer.Option(metavar="mup|mssp", help="The initialization of Table B.1 of MSSP.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of plain SGD; default: 5, or all of --against.")] = None,
    lr: Annotated[float | None, typer.Option(help="The base LR, which the table scales; default: 0.05.")] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="X.npy", help="The batch, [samples, features]; default: a built-in one.")
    ] = None,
    targets: Annotated[
        Path | None, typer.Option(metavar="Y.npy", help="Its targets: numbers [samples, outputs], or whole classes.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Samples of the built-in batch; default: 8.")] = None,
    loss: Annotated[
        str | None, typer.Option(metavar="squared_error|cross_entropy", help="Default: squared_error.")
    ] = None,
    gate: Annotated[
        str | None, typer.Option(help="sigmoid; in regime I also softmax or normalized_softmax; default: sigmoid.")
    ] = None,
    top_k: Annotated[
        float | None,
        typer.Option(help="The share of active experts, e.g. .25; in regime I their number, or a share."),
    ] = None,
    activation: Annotated[
        str | None, typer.Option(help="Of the experts: linear, relu, gelu or tanh; default: linear.")
    ] = None,
    input_activation: Annotated[str | None, typer.Option(help="Of the input layer; default: linear.")] = None,
    aggregation: Annotated[
        str | None, typer.Option(metavar="1/K|1/M", help="The factor of the sum over experts; default: 1/K.")
    ] = None,
    experts: Annotated[int | None, typer.Option(help="Of I: the number of experts; default: 4.")] = None,
    matrices: Annotated[int | None, typer.Option(help="Of I: the matrices of an expert, 1 or 2; default: 1.")] = None,
    kappa: Annotated[
        float | None, typer.Option(help="Of II, III, residual: experts per width, M/N; default: 0.5.")
    ] = None,
    expert_width: Annotated[
        int | None, typer.Option(help="Of II: N_e; default: 2. Of residual: N_e, if it stays fixed.")
    ] = None,
    iota: Annotated[
        float | None, typer.Option(help="Of III, residual, I with two matrices: N_e/N; default: 0.25.")
    ] = None,
    depth: Annotated[int | None, typer.Option(help="Of residual: the blocks; default: 3.")] = None,
    bias: Annotated[
        str | None, typer.Option(help="Of I, residual: a router bias, none, fixed, schedule or learned.")
    ] = None,
    bias_std: Annotated[float | None, typer.Option(help="Its std; default: 1.")] = None,
    hp: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="A multiplier, e.g. readout.init_mult=0; may be repeated."),
    ] = None,
    sites: Annotated[
        int | None,
        typer.Option(help="Sampled sites of every population, a power of two; default: 32768, or 2048 in III."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Seeds of the solver, which give its error; default: 4, or 8 of --against. Repeats of --bias-rate."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="RESULTS", help="Compare the networks of this sweep with their limit.")
    ] = None,
    axis: Annotated[str | None, typer.Option(help="Of --against: this axis alone.")] = None,
    arm: Annotated[str | None, typer.Option(help="Of --against: this arm alone, e.g. mssp-ii.")] = None,
    value: Annotated[
        float | None,
        typer.Option(help="Of --against: the value of the judged HP; default: the best at the smallest width."),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Of --against: how near is near enough, as a share of the loss; default: 0.05.")
    ] = None,
    bias_rate: Annotated[
        bool,
        typer.Option("--bias-rate", help="How many experts change per step of a balancing bias (CompleteP Fig. 6)."),
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Write figures, limit.txt and limit.json to this folder.")] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Solve the training of an infinite mixture of MLPs, with the error of the solver.

    In regime I the width is infinite, in II width and experts, in III width, experts and expert width. The residual
    network has infinite width and infinitely many experts. Numbers are shown before training and after every update.

    With --against the networks of a sweep of the family mlp are compared with the limit that their table approaches:
    how far is each width from it, and do they approach it?

    \b
    Examples:
      hpxfer limit --regime II --parameterization mssp --kappa .5 --expert-width 2 --steps 5 --lr .05
      hpxfer limit --regime I --parameterization mup --experts 4 --top-k 2 --bias fixed --activation linear
      hpxfer limit --regime III --parameterization mup --inputs x.npy --targets y.npy --json
      hpxfer limit --against results/limit-regime-ii --output limits
      hpxfer limit --bias-rate
    """
    asked: dict[str, Any] = {
        "regime": regime,
        "parameterization": parameterization,
        "steps": steps,
        "lr": lr,
        "inputs": inputs,
        "targets": targets,
        "samples": samples,
        "loss": loss,
        "gate": gate,
        "top_k": top_k,
        "activation": activation,
        "input_activation": input_activation,
        "aggregation": aggregation,
        "experts": experts,
        "matrices": matrices,
        "kappa": kappa,
        "expert_width": expert_width,
        "iota": iota,
        "depth": depth,
        "bias": bias,
        "bias_std": bias_std,
        "hp": hp or None,
    }
    from hpxfer.cli import limit_source

    of_against = {"axis": axis, "arm": arm, "value": value, "tolerance": tolerance}
    found: limit_source.Answer
    if bias_rate:
        _require_none("--bias-rate", {**asked, **of_against, "sites": sites, "against": against, "plugin": plugin})
        found, files = limit_source.bias_rate(seeds, output)
    elif against is not None:
        _require_none("--against", {name: value for name, value in asked.items() if name != "steps"})
        load_plugins(plugin)
        options = {**of_against, "steps": steps, "sites": sites, "seeds": seeds}
        found, files = limit_source.against(against, options, output)
    else:
        _require_none("--regime", {**of_against, "plugin": plugin})
        found, files = limit_source.limit(asked, sites, seeds, output)
    warn(found.cautions)
    if as_json:
        say(json.dumps({**found.to_dict(), "files": [str(file) for file in files]}, allow_nan=False))
    else:
        say(found.table() + (f"\n\n{written(files)}" if files else ""))


def _require_none(question: str, options: dict[str, Any]) -> None:
    """Raise HpxferError for options that another question of the command reads."""
    if given := [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]:
        raise HpxferError(f"{', '.join(given)}: not read with {question}; leave out")


LIMIT = Command(name="limit", run=limit)
