"""`hpxfer watch`: how far a run is, seen from another shell."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from hpxfer.cli.commands import Command
from hpxfer.cli.options import AsJson, Folder
from hpxfer.cli.output import INTERRUPTED, OK, TRIALS_FAILED, say, to_stdout, warn
from hpxfer.errors import HpxferError

if TYPE_CHECKING:
    from hpxfer.progress.watch import RunView
    from hpxfer.store.location import ResultsLocation

# With --once the table may be longer than the terminal, which then scrolls.
ALL_ROWS = 10_000
# A person or a scheduler soon starts the next run.
NEXT_S = 60.0


def watch(
    results: Folder,
    once: Annotated[bool, typer.Option("--once", help="Show the state once and leave.")] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=f"Seconds to wait for the next run if the driver is gone; inf: without end; default: {NEXT_S:g}.",
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Serve a page on this machine that follows the run, with the report so far."),
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port of the page; default: any free port.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show from another shell how far a run is. The command ends when the run ends.

    With --serve it prints the address of a page instead, and follows this run and the next ones until Ctrl-C.

    If the driver was killed, or its machine was lost, the command says so and waits --wait seconds for the next
    `hpxfer run`. If the run was interrupted by hand, it ends at once. With --json it prints one line of JSON per look.
    The exit code is 1 if the run was stopped, if its driver is gone, or if trials failed, and 2 if the folder holds
    neither the report of a run nor trials.

    \b
    Examples:
      hpxfer watch results/quickstart
      hpxfer watch results/quickstart --once --json
      hpxfer watch results/quickstart --serve
    """
    from rich.console import Console
    from rich.text import Text

    from hpxfer.progress.live import LiveDisplay
    from hpxfer.progress.table import progress_table
    from hpxfer.progress.watch import view_now, views
    from hpxfer.store.location import location_at

    _require_fitting(serve, port, {"--once": once, "--json": as_json, "--wait": wait is not None})
    wait = NEXT_S if wait is None else wait
    location = location_at(results)
    if serve:
        _serve(location, port or 0)
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


def _require_fitting(serve: bool, port: int | None, others: dict[str, bool]) -> None:
    """Raise HpxferError unless the options go together."""
    if port is not None and not serve:
        raise HpxferError("--port: must come with --serve, got it alone; add --serve")
    if serve and (given := [name for name, is_given in others.items() if is_given]):
        raise HpxferError(
            f"--serve: must come without --once, --json and --wait, got {', '.join(given)}; leave out one or the other"
        )


def _serve(location: ResultsLocation, port: int) -> NoReturn:
    """Serve the live page until this process is told to end."""
    from hpxfer.host.interrupts import Interrupted, interrupts
    from hpxfer.live.serve import served

    try:
        with interrupts(), served(location, port) as page:
            warn([page.problem] if page.problem else [])
            say(f"{location.where}: {page.url}\nThe page follows the run. Ctrl-C ends it.")
            page.follow()
    except Interrupted as end:
        raise typer.Exit(128 + end.signal_number) from None


WATCH = Command(name="watch", run=watch)
