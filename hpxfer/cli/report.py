"""`hpxfer report`: does the HP transfer? The verdict, and a page with all that supports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson
from hpxfer.cli.output import say, warn, written

# Where the report of results on an object store goes.
OUTPUT = Path("report")
Hp = Annotated[str | None, typer.Option("--hp", help="The HP to judge; default: the sweep's.")]
Loss = Annotated[str | None, typer.Option("--loss", help="validation or final_window; default: the sweep's.")]


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
        output = OUTPUT  # results on an object store are read, never written
    found = write_report(folders, output=output, hp=hp, loss=loss, form=form, followup=write_followup, show=show)
    warn(found.warnings)
    say(json.dumps(found.to_dict()) if as_json else f"{found.text()}\n\n{written(list(found.files))}")


REPORT = Command(name="report", run=report)
