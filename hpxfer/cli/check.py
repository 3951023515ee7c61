"""`hpxfer check`: do features move as a table predicts?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Convention, Parameterization, column
from hpxfer.cli.output import CHECK_MISSED, say, written


def check(
    parameterization: Parameterization = None,
    convention: Convention = None,
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
        raise typer.Exit(CHECK_MISSED)


CHECK = Command(name="check", run=check)
