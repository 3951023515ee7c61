"""`hpxfer report`: does the HP transfer? The verdict, and a page with all that supports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Base, Plugins, load_plugins
from hpxfer.cli.output import say, warn, written
from hpxfer.errors import HpxferError

# Where the report of results on an object store goes.
OUTPUT = Path("report")
Hp = Annotated[str | None, typer.Option("--hp", help="The HP to judge; default: the sweep's.")]
Loss = Annotated[str | None, typer.Option("--loss", help="A loss, as in judge.loss; default: the sweep's.")]


def report(
    results: Annotated[list[str], typer.Argument(metavar="RESULTS", help="One or several results folders or URIs.")],
    output: Annotated[
        Path | None,
        typer.Option(
            help="The folder for the files; default: the results folder, of several the one above, report for a URI."
        ),
    ] = None,
    hp: Hp = None,
    loss: Loss = None,
    base: Base = None,
    form: Annotated[
        str,
        typer.Option("--format", help="html, json; text: the verdict alone."),
    ] = "html",
    write_followup: Annotated[
        Path | None,
        typer.Option(
            help="Write the sweep that would decide an undecided verdict, or add a control, to this new file."
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="ARM",
            help="Count the steps to the loss of this arm: a shape, a parameterization or both, e.g. w64, sp or "
            "'sp w64'; default: the dense shape with as many active parameters, else the control.",
        ),
    ] = None,
    reference_curves: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw these loss curves beside the arms, and count the steps to their losses: a CSV file with the "
            "columns name, step or tokens, and loss.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Print all that was found: reasons, every shape, every statistic.")
    ] = False,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Judge whether the HP transfers, and write a page with the verdict, figures, tables and every trial.

    The report of an unfinished sweep holds what is known so far, and says what is missing.

    \b
    Examples:
      hpxfer report results/quickstart --open
      hpxfer report results/width results/depth --output report
      hpxfer report results/width --write-followup sweeps/more.yaml
      hpxfer report results/width --base w64
      hpxfer report results/long_horizon --reference-curves gpt2.csv
      hpxfer report results/width --plugin ./my_statistics.py --full
    """
    from hpxfer.analysis.references import References, read_reference_curves
    from hpxfer.report.write import write_report
    from hpxfer.storage.uri import is_uri
    from hpxfer.store.location import local_results

    load_plugins(plugin)
    folders = [local_results(folder) for folder in results]
    if output is None and any(map(is_uri, results)):
        output = OUTPUT  # results on an object store are read, never written
    curves = () if reference_curves is None else read_reference_curves(reference_curves)
    found = write_report(
        folders,
        output=output,
        hp=hp,
        loss=loss,
        base=base,
        form=form,
        followup=write_followup,
        show=show,
        full=full,
        references=References(arm=reference, curves=curves),
    )
    warn(found.warnings)
    if as_json:
        say(json.dumps(found.to_dict()))
    else:
        hint = [] if full else ["Reasons and tables: --full prints them."]
        files = [written(found.files)] if found.files else []
        say("\n".join([found.text(), *hint, *files, *found.next_steps]))
    if found.not_written:
        raise HpxferError("\n".join(found.not_written))


REPORT = Command(name="report", run=report)
