"""`hpxfer report`: does the HP transfer? The verdict, and a page with all that supports it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hpxfer.cli.options import AsJson, Base, File, Plugins, Text
from hpxfer.cli.output import answer, warn, written
from hpxfer.errors import HpxferError


def report(
    results: Annotated[list[str], Argument(metavar="RESULTS", help="One or several results folders or URIs.")],
    output: Annotated[File, Option(help="For files; default: the results folder, of several the one above.")] = None,
    hp: Annotated[Text, Option(help="The HP to judge; default: the sweep's.")] = None,
    loss: Annotated[Text, Option(help="A loss, as in judge.loss; default: the sweep's.")] = None,
    base: Base = None,
    form: Annotated[str, Option("--format", help="html, json; text: the verdict alone.")] = "html",
    write_followup: Annotated[File, Option(help="Write the sweep that would decide, or add a control.")] = None,
    reference: Annotated[
        Text,
        Option(
            metavar="ARM",
            help="Count the steps to the loss of this arm: a shape, a parameterization or both, e.g. w64, sp or "
            "'sp w64'; default: the dense shape with as many active parameters, else the control.",
        ),
    ] = None,
    reference_curves: Annotated[
        File,
        Option(
            metavar="FILE",
            help="Draw these loss curves beside the arms, and count the steps to their losses: a CSV file with "
            "the columns name, step or tokens, and loss.",
        ),
    ] = None,
    show: Annotated[bool, Option("--open", help="Open the report in a browser.")] = False,
    full: Annotated[bool, Option("--full", help="Print all that was found: reasons, shapes, statistics.")] = False,
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
    from hpxfer.host import is_uri
    from hpxfer.report.write import write_report
    from hpxfer.store import location_at

    folders = [location_at(folder).folder for folder in results]
    if output is None and any(map(is_uri, results)):
        output = Path("report")  # results on an object store are read, never written
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
        references=References(
            arm=reference, curves=() if reference_curves is None else read_reference_curves(reference_curves)
        ),
    )
    warn(found.warnings)
    hint = [] if full else ["Reasons and tables: --full prints them."]
    said = [*hint, *([written(found.files)] if found.files else []), *found.next_steps]
    answer(found.to_dict, lambda: "\n".join([found.text(), *said]), as_json=as_json)
    if found.not_written:
        raise HpxferError("\n".join(found.not_written))
