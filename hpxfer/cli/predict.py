"""`hpxfer predict`: the HPs of a bigger model, and the loss to expect of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Base, Folder, Parameterization, Plugins, load_plugins
from hpxfer.cli.output import say, warn


def predict(
    results: Folder,
    target: Annotated[Path, typer.Option(help="A JSON file with the target shape.")],
    tokens: Annotated[
        int | None,
        typer.Option(help="The tokens that the target trains on; default: as the shapes of its axis."),
    ] = None,
    parameterization: Parameterization = None,
    base: Base = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Predict the loss of a bigger model with an interval, and show what each of its tensors gets.

    The loss is that of the HP which the recipe transfers. It is said for a shape that continues one axis of the sweep,
    up to twice its largest measured scale. Otherwise the text says why it cannot be said, and the HPs remain. A shape
    is a JSON file as in `hpxfer explain`.

    \b
    Examples:
      hpxfer predict results/transfer --target w512.json
      hpxfer predict results/transfer --target w512.json --tokens 153600
      hpxfer predict results/transfer --target w512.json --parameterization sp --json
    """
    from hpxfer.prediction import predict as predict_target
    from hpxfer.results import load_results
    from hpxfer.scaling.shape import load_shape

    load_plugins(plugin)
    shape = load_shape(target)
    outcome = load_results(results)
    if base is not None:
        outcome = outcome.from_base(base)
    found = predict_target(outcome, shape, tokens, parameterization)
    warn([*outcome.problems, *found.hps.cautions])
    say(json.dumps(found.to_dict()) if as_json else str(found))


PREDICT = Command(name="predict", run=predict)
