"""`hpxfer watch`: how far a run is, seen from another shell."""

from __future__ import annotations

import json
import math
from typing import Annotated

import typer
from typer import Option

from hpxfer.cli.options import AsJson, Folder
from hpxfer.cli.output import INTERRUPTED, OK, TRIALS_FAILED, say, to_stdout, warn

ALL_ROWS = 10_000  # with --once the table may be longer than the terminal, which then scrolls
NEXT_S = 60.0  # a person or a scheduler soon starts the next run


def watch(
    results: Folder,
    once: Annotated[bool, Option("--once", help="Show the state once and leave.")] = False,
    wait: Annotated[float, Option(min=0, help="Seconds to wait for the next run if the driver is gone.")] = NEXT_S,
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

    from hpxfer.progress import LiveDisplay, progress_table, view_now, views
    from hpxfer.store import location_at

    location, console = location_at(results), Console()
    last = view_now(location)
    last.require_run()

    def follow() -> None:
        nonlocal last
        gone = False
        picture = LiveDisplay(console, lambda: last.run_status, waiting=f"{results}: waiting for the first report")
        with to_stdout(), picture as shown:
            for last in views(location, next_s=wait):
                shown.update(last.run_status.num_notes if last.run_status else 0)
                if wait and gone != (last.state == "gone"):
                    gone = not gone
                    limit = f" {wait:g} s" if wait < math.inf else ""
                    stays = f"; waiting{limit} for the next run, Ctrl-C ends" if gone else ""
                    console.print(Text(last.text() + stays), soft_wrap=True)

    try:
        if as_json:
            looks = iter([last]) if once else views(location, next_s=wait)
            for last in looks:
                say(json.dumps(last.to_dict()))
        elif not once:
            follow()
        elif last.run_status is not None:
            console.print(progress_table(last.run_status, width=console.width, height=ALL_ROWS))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    warn(last.problems())
    if not as_json:
        say(last.text())
    failed = last.run_status is not None and last.run_status.failed > 0
    raise typer.Exit(TRIALS_FAILED if failed or last.state in ("stopped", "gone") else OK)
