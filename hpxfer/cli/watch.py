"""`hpxfer watch`: how far a run is, seen from another shell."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Folder
from hpxfer.cli.output import INTERRUPTED, OK, TRIALS_FAILED, say, to_stdout

if TYPE_CHECKING:
    from hpxfer.progress.watch import Look

# A single picture scrolls: nothing is cut for the height of a terminal.
ALL_ROWS = 10_000
# Where a driver is gone, a person or a scheduler soon starts the next.
NEXT_S = 60.0


def watch(
    results: Folder,
    once: Annotated[bool, typer.Option("--once", help="Look once and leave.")] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to stay for the next run where the driver is gone; inf: for good.")
    ] = NEXT_S,
    as_json: AsJson = False,
) -> None:
    """Show how far the run of a results folder is, from another shell. Leaves when the run ends.

    Where the driver is gone without a word (killed, or its machine lost), it says so and stays --wait seconds for the
    next `hpxfer run`; where the run was ended by hand it leaves at once. With --json, a line of JSON for every look.
    Exit code 1: the run was stopped, its driver is gone, or trials failed.

    \b
    Examples:
      hpxfer watch results/quickstart
      hpxfer watch results/quickstart --once --json
    """
    from rich.console import Console
    from rich.text import Text

    from hpxfer.progress.live import Shown
    from hpxfer.progress.table import progress_table
    from hpxfer.progress.watch import look, looks
    from hpxfer.store.location import place_at

    place = place_at(results)
    last = look(place)

    def show(found: Look) -> None:
        nonlocal last
        last = found
        if as_json:
            say(json.dumps(found.to_dict()))
        elif once and found.snapshot is not None:
            console = Console()
            console.print(progress_table(found.snapshot, width=console.width, height=ALL_ROWS))

    try:
        if once:
            show(last)
        elif as_json:
            for found in looks(place, next_s=wait):
                show(found)
        else:
            console, gone = Console(), False
            picture = Shown(console, lambda: last.snapshot, waiting=f"{results}: waiting for the first report")
            with to_stdout(), picture as shown:
                for found in looks(place, next_s=wait):
                    show(found)
                    shown.update(found.snapshot.num_notes if found.snapshot else 0)
                    if wait and gone != (found.state == "gone"):
                        gone = not gone
                        limit = f" {wait:g} s" if wait < math.inf else ""
                        stays = f"; waiting{limit} for the next run, Ctrl-C ends" if gone else ""
                        console.print(Text(found.text() + stays), soft_wrap=True)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if not as_json:
        say(last.text())
    failed = last.snapshot is not None and last.snapshot.failed > 0
    raise typer.Exit(TRIALS_FAILED if failed or last.state in ("stopped", "gone") else OK)


WATCH = Command(name="watch", run=watch)
