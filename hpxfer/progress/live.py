"""The live display of a run: tables that refresh on a terminal, and a plain line every few seconds elsewhere."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hpxfer.host.output import spell_time
from hpxfer.progress.file import RunCounts
from hpxfer.progress.status import RunningStack, RunStatus, ShapeProgress
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


# A table drops the less important columns if the terminal is narrower than this.
NARROW = 72
WIDE = 100
# The least number of rows of a table, however low the terminal is.
LEAST_ROWS = 2


def status_text(run_status: RunStatus) -> str:
    """Return the line: trials done, failed and diverged, tokens/s, and the time left at the present throughput."""
    most = "at most " if run_status.at_most else ""
    trials = (
        f"trials {run_status.ended}/{most}{run_status.num_left} done, {run_status.failed} failed, "
        f"{run_status.diverged} diverged" + (f", {run_status.stopped} stopped early" if run_status.stopped else "")
    )
    over = run_status.ended >= run_status.num_left
    if run_status.tokens_per_s is None:
        waits = "starting workers" if not run_status.running else "waiting for the first report"
        return trials if over else f"{trials} | {waits}"
    line = f"{trials} | {run_status.tokens_per_s:,.0f} {run_status.reads}/s"
    if over or run_status.eta_s is None:
        return line
    return f"{line} | ETA {most}{spell_time(run_status.eta_s)}"


def progress_table(run_status: RunStatus, *, width: int, height: int) -> RenderableType:
    """Return the line and the tables, cut to fit a terminal of this size."""
    line = textwrap.wrap(f"{run_status.sweep}: {status_text(run_status)}", max(1, width - 1))
    # The line, two headings, two rows that say what was left out, and one free row.
    rows = max(2 * LEAST_ROWS, height - 5 - len(line))
    shown = min(len(run_status.shapes), max(LEAST_ROWS, rows - min(len(run_status.running), rows // 2)))
    parts: list[RenderableType] = [Text("\n".join(line))]
    parts += _shapes(run_status.shapes, shown, width)
    if run_status.running:
        parts += _running(run_status.running, max(LEAST_ROWS, rows - shown), width)
    return Group(*parts)


def _shapes(shapes: tuple[ShapeProgress, ...], most: int, width: int) -> list[RenderableType]:
    """Return the table of shapes. If they are too many, those with work running or left go first."""
    table = _table(("shape", "left"), ("done", "right"))
    for name in ("diverged", "failed"):
        table.add_column(name if width >= NARROW else name[:3], justify="right", no_wrap=True)
    if width >= NARROW:
        table.add_column("running", justify="right", no_wrap=True)
    table.add_column("best so far", justify="right", no_wrap=True)
    if width >= NARROW:
        table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    order = sorted(range(len(shapes)), key=lambda k: (not shapes[k].running, not shapes[k].num_left))
    for k in sorted(order[:most]):
        shape = shapes[k]
        best = shape.best_text or "-"
        cells = [shape.label, f"{shape.num_done}/{shape.num_trials}", str(shape.diverged), str(shape.failed)]
        cells += [str(shape.running), best, shape.best] if width >= NARROW else [best]
        table.add_row(*(Text(cell) for cell in cells))
    left_out = [shapes[k] for k in order[most:]]
    if not left_out:
        return [table]
    done, trials = sum(shape.num_done for shape in left_out), sum(shape.num_trials for shape in left_out)
    return [table, _cut(f"... and {len(left_out)} more shapes: {done}/{trials} trials done", width)]


def _running(running: tuple[RunningStack, ...], most: int, width: int) -> list[RenderableType]:
    """Return the table of running stacks. If they are too many, those that began first stay."""
    table = _table(("running", "left"), ("trials", "right"), ("step", "right"))
    if width >= NARROW:
        table.add_column("", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("for", justify="right", no_wrap=True)
    if width >= NARROW:
        table.add_column("on", no_wrap=True, overflow="ellipsis", ratio=1)
    for stack in running[:most]:
        cells = [stack.label, _trials(stack), f"{stack.step}/{stack.steps}"]
        cells += [_bar(stack.step, stack.steps, 20 if width >= WIDE else 8)] if width >= NARROW else []
        cells += [_loss(stack), spell_time(stack.running_s)]
        cells += [f"{stack.host} {stack.pid}" if stack.host else "-"] if width >= NARROW else []
        table.add_row(*(Text(cell) for cell in cells))
    left_out = len(running) - most
    return [table, *([_cut(f"... and {left_out} more stacks", width)] if left_out > 0 else [])]


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for name, justify in columns:
        if justify == "right":
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, no_wrap=True, overflow="ellipsis")
    return table


def _trials(stack: RunningStack) -> str:
    return str(stack.num_trials) if stack.alive >= stack.num_trials else f"{stack.alive} of {stack.num_trials}"


def _loss(stack: RunningStack) -> str:
    if stack.loss_nats is not None:
        return f"{stack.loss_nats:.4f}"
    return "-" if stack.alive else "diverged"


def _bar(step: int, steps: int, cells: int) -> str:
    """Return a progress bar in plain ASCII, which logs and old terminals show too."""
    full = round(cells * min(1.0, step / steps)) if steps else 0
    return "#" * full + "." * (cells - full)


def _cut(text: str, width: int) -> Text:
    line = Text(text, no_wrap=True, overflow="ellipsis")
    line.truncate(max(1, width - 1), overflow="ellipsis")
    return line
