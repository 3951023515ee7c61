"""The live display of a run: tables that refresh on a terminal, and a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from hpxfer.progress.counts import RunCounts
from hpxfer.progress.status import RunStatus
from hpxfer.progress.table import progress_table, status_text
from hpxfer.trial.events import Event
from hpxfer.trial.stack import Stack

PLAIN_LINE_S = 10.0


class LiveDisplay:
    """Shows the status of a run on a console as long as the context is open: tables, or lines if it is no terminal.

    `status_now` returns the status of the run now, or None before it has begun. A thread of rich draws. At the end the
    terminal is as it was before, however the run ended.
    """

    def __init__(self, console: Console, status_now: Callable[[], RunStatus | None], waiting: str = "") -> None:
        self._console, self._status_now, self._waiting = console, status_now, waiting
        self._began = time.monotonic()
        self._last_plain = self._began
        self._num_notes = 0
        self._live = Live(
            console=console,
            refresh_per_second=4,
            get_renderable=self._renderable,
            transient=True,
            vertical_overflow="crop",
        )

    def __enter__(self) -> LiveDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()
        run_status = self._status_now()
        if run_status is not None:
            self._print_notes(run_status)
            self._print_line(status_text(run_status))

    def update(self, num_notes: int) -> None:
        """Print what is due: new decisions of the search and, without a terminal, a line every few seconds.

        `num_notes` is the number of decisions so far. The status is computed only if something is due.
        """
        self._num_notes = min(self._num_notes, num_notes)  # fewer than before: this is another run
        now = time.monotonic()
        line = not self._console.is_terminal and now - self._last_plain >= PLAIN_LINE_S
        run_status = self._status_now() if line or num_notes > self._num_notes else None
        if run_status is None:
            return
        self._print_notes(run_status)
        if line:
            self._last_plain = now
            self._print_line(status_text(run_status))

    def _print_notes(self, run_status: RunStatus) -> None:
        new = run_status.num_notes - self._num_notes
        self._num_notes = run_status.num_notes
        for note in run_status.notes[-new:] if new > 0 else ():
            self._print_line(f"search: {note}")

    def _print_line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _renderable(self) -> RenderableType:
        run_status = self._status_now()
        if run_status is None:
            return Text(f"{self._waiting}, {time.monotonic() - self._began:.0f} s")
        return progress_table(run_status, width=self._console.width, height=self._console.height)


class LiveProgress(LiveDisplay):
    """Shows the progress of a run on stderr as long as the context is open. Call it with every event."""

    def __init__(self, console: Console) -> None:
        self._counts: RunCounts | None = None
        super().__init__(console, self._run_status, waiting="starting workers")

    def __call__(self, stack: Stack, event: Event, counts: RunCounts) -> None:
        """Note an event. On a terminal the display refreshes by itself."""
        self._counts = counts
        self.update(counts.num_notes)

    def _run_status(self) -> RunStatus | None:
        return None if self._counts is None else self._counts.run_status()
