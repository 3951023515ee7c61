"""`hpxfer watch`: how far a run is, seen from another shell."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Folder
from hpxfer.cli.output import INTERRUPTED, OK, TRIALS_FAILED, say, to_stdout, warn

if TYPE_CHECKING:
    from hpxfer.progress.watch import RunView

# With --once the table may be longer than the terminal, which then scrolls.
ALL_ROWS = 10_000
# A person or a scheduler soon starts the next run.
NEXT_S = 60.0


def watch(
    results: Folder,
    once: Annotated[bool, typer.Option("--once", help="Show the state once and leave.")] = False,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the next run if the driver is gone; inf: without end.")
    ] = NEXT_S,
    as_json: AsJson = False,
) -> None:
    """Show from another shell how far a run is. The command ends when the run ends.

    If the driver was killed, or its machine was lost, the command says so and waits --wait seconds for the next
    `hpxfer run`. If the run was interrupted by hand, it ends at once. With --json it prints one line of JSON per look.
    The exit code is 1 if the run was stopped, if its driver is gone, or if trials failed, and 2 if the folder holds
    neither the report of a run nor trials.

    \b
    Examples:
      hpxfer watch results/quickstart
      hpxfer watch results/quickstart --once --json
    """
    from rich.console import Console
    from rich.text import Text

    from hpxfer.progress.live import LiveDisplay, progress_table
    from hpxfer.progress.watch import view_now, views
    from hpxfer.store.location import location_at

    location = location_at(results)
    last = view_now(location)
    last.require_run()

    def show(found: RunView) -> None:
        nonlocal last
        last = found
        if as_json:
            say(json.dumps(found.to_dict()))
        elif once and found.run_status is not None:
            console = Console()
            console.print(progress_table(found.run_status, width=console.width, height=ALL_ROWS))

    try:
        if once:
            show(last)
        elif as_json:
            for found in views(location, next_s=wait):
                show(found)
        else:
            console, gone = Console(), False
            picture = LiveDisplay(console, lambda: last.run_status, waiting=f"{results}: waiting for the first report")
            with to_stdout(), picture as shown:
                for found in views(location, next_s=wait):
                    show(found)
                    shown.update(found.run_status.num_notes if found.run_status else 0)
                    if wait and gone != (found.state == "gone"):
                        gone = not gone
                        limit = f" {wait:g} s" if wait < math.inf else ""
                        stays = f"; waiting{limit} for the next run, Ctrl-C ends" if gone else ""
                        console.print(Text(found.text() + stays), soft_wrap=True)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    warn(last.problems())
    if not as_json:
        say(last.text())
    failed = last.run_status is not None and last.run_status.failed > 0
    raise typer.Exit(TRIALS_FAILED if failed or last.state in ("stopped", "gone") else OK)


WATCH = Command(name="watch", run=watch)
