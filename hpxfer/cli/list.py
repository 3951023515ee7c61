"""`hpxfer list`: every results folder below a root, and how far each sweep is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hpxfer.cli.options import AsJson
from hpxfer.cli.output import answer, say, warn
from hpxfer.errors import HpxferError
from hpxfer.host import is_uri


def list_(
    root: Annotated[str, Argument(metavar="ROOT", help="The folder that holds results folders.")] = "results",
    verdicts: Annotated[bool, Option("--verdict/--no-verdict", help="Judge each sweep, or leave it out.")] = True,
    as_json: AsJson = False,
) -> None:
    """List the results folders below a folder: state, trials, size and verdict of each.

    A sweep is running while a driver holds its folder; finished when no trial is missing or failed; stopped when its
    last run was interrupted or its driver is gone; partial otherwise. A folder that cannot be read is skipped with a
    warning that says why.

    \b
    Examples:
      hpxfer list
      hpxfer list results/published --json
    """
    from hpxfer.report.listing import list_results, listing_table

    if is_uri(root):
        raise HpxferError(f"{root}: must be a folder on this machine, got a URI; see one sweep with: hpxfer watch URI")
    found = list_results(Path(root), with_verdicts=verdicts)
    warn(f"{entry.folder}: skipped: {entry.problem}" for entry in found if entry.problem)
    known = [entry for entry in found if entry.problem is None]
    if known or as_json:
        answer(lambda: [entry.to_dict() for entry in found], listing_table(known).to_text, as_json=as_json)
    elif not found:
        say(f"{root}: no results yet; `hpxfer run SWEEP` makes some", err=True)
