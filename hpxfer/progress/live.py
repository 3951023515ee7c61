"""The live display of a run: tables that refresh on a terminal, and a plain line every few seconds elsewhere."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hpxfer.host import spell_time
from hpxfer.progress.counts import RunCounts
from hpxfer.progress.status import RunningStack, RunStatus, ShapeProgress
from hpxfer.trial import Event, Stack

PLAIN_LINE_S = 10.0


class LiveDisplay:
    """Shows the status of a run on a console as long as the context is open: tables, or lines if it is no terminal.

    `status_now` returns the status of the run now, or None before it has begun. A thread of rich draws. At the end the
    terminal is as it was before, however the run ended.
    """

    def __init__(self, console: Console, status_now: Callable[[], RunStatus | None], waiting: str = "") -> None:
        self._console, self._status_now, self._waiting = console, status_now, waiting
        self._began = self._last_plain = time.monotonic()
        self._num_notes = 0
        self._live = Live(console=console, get_renderable=self._renderable, transient=True, vertical_overflow="crop")

    def __enter__(self) -> LiveDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()
        if (run_status := self._status_now()) is not None:
            self._print(run_status, line=True)

    def update(self, num_notes: int) -> None:
        """Print what is due: new decisions of the search and, without a terminal, a line every few seconds.

        `num_notes` is the number of decisions so far. The status is computed only if something is due.
        """
        self._num_notes = min(self._num_notes, num_notes)  # fewer than before: this is another run
        line = not self._console.is_terminal and time.monotonic() - self._last_plain >= PLAIN_LINE_S
        if (line or num_notes > self._num_notes) and (run_status := self._status_now()) is not None:
            self._print(run_status, line=line)

    def _print(self, run_status: RunStatus, *, line: bool) -> None:
        new = run_status.num_notes - self._num_notes
        self._num_notes = run_status.num_notes
        texts = [f"search: {note}" for note in (run_status.notes[-new:] if new > 0 else ())]
        if line:
            self._last_plain = time.monotonic()
            texts.append(status_text(run_status))
        for text in texts:
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
        super().__init__(
            console, lambda: None if self._counts is None else self._counts.run_status(), waiting="starting workers"
        )

    def __call__(self, stack: Stack, event: Event, counts: RunCounts) -> None:
        """Note an event. On a terminal the display refreshes by itself."""
        self._counts = counts
        self.update(counts.num_notes)


# A table drops the less important columns if the terminal is narrower than this.
NARROW = 72
WIDE = 100
# The least number of rows of a table, however low the terminal is.
LEAST_ROWS = 2


def status_text(run_status: RunStatus) -> str:
    """Return the line: trials done, failed and diverged, tokens/s, and the time left at the present throughput."""
    most = "at most " if run_status.at_most else ""
    parts = [
        f"trials {run_status.ended}/{most}{run_status.num_left} done, {run_status.failed} failed, "
        f"{run_status.diverged} diverged" + (f", {run_status.stopped} stopped early" if run_status.stopped else "")
    ]
    is_over = run_status.ended >= run_status.num_left
    if run_status.tokens_per_s is not None:
        parts.append(f"{run_status.tokens_per_s:,.0f} {run_status.reads}/s")
    elif not is_over:
        parts.append("waiting for the first report" if run_status.running else "starting workers")
    if run_status.tokens_per_s is not None and run_status.eta_s is not None and not is_over:
        parts.append(f"ETA {most}{spell_time(run_status.eta_s)}")
    return " | ".join(parts)


def progress_table(run_status: RunStatus, *, width: int, height: int) -> RenderableType:
    """Return the line and the tables, cut to fit a terminal of this size.

    If shapes are too many, those with work running or left stay; of stacks, those that began first.
    """
    line = textwrap.wrap(f"{run_status.sweep}: {status_text(run_status)}", max(1, width - 1))
    shapes, running = run_status.shapes, run_status.running
    # The line, two headings, two rows that say what was left out, and one free row.
    rows = max(2 * LEAST_ROWS, height - 5 - len(line))
    most = min(len(shapes), max(LEAST_ROWS, rows - min(len(running), rows // 2)))
    order = sorted(range(len(shapes)), key=lambda k: (not shapes[k].running, not shapes[k].num_left))
    parts: list[RenderableType] = [Text("\n".join(line))]
    parts.append(_table(width, _SHAPE, [shapes[k] for k in sorted(order[:most])]))
    if left_out := [shapes[k] for k in order[most:]]:
        done, trials = sum(shape.num_done for shape in left_out), sum(shape.num_trials for shape in left_out)
        parts.append(_cut(f"... and {len(left_out)} more shapes: {done}/{trials} trials done", width))
    if running:
        most = max(LEAST_ROWS, rows - most)
        parts.append(_table(width, _STACK, running[:most]))
        parts += [_cut(f"... and {len(running) - most} more stacks", width)] if len(running) > most else []
    return Group(*parts)


def _loss(stack: RunningStack) -> str:
    if stack.loss_nats is not None:
        return f"{stack.loss_nats:.4f}"
    return "-" if stack.alive else "diverged"


def _bar(stack: RunningStack, cells: int) -> str:
    """Return a progress bar in plain ASCII, which logs and old terminals show too."""
    full = round(cells * min(1.0, stack.step / stack.steps)) if stack.steps else 0
    return "#" * full + "." * (cells - full)


def _trials(stack: RunningStack) -> str:
    return f"{stack.num_trials}" if stack.alive >= stack.num_trials else f"{stack.alive} of {stack.num_trials}"


# Heading (`<` before it: its text stands at the left), the least width of the terminal, the text of a row by its width.
Column = tuple[str, int, Callable[[Any, int], str]]
_SHAPE: tuple[Column, ...] = (
    ("<shape", 0, lambda shape, _: shape.label),
    ("done", 0, lambda shape, _: f"{shape.num_done}/{shape.num_trials}"),
    ("diverged", 0, lambda shape, _: str(shape.diverged)),
    ("failed", 0, lambda shape, _: str(shape.failed)),
    ("running", NARROW, lambda shape, _: str(shape.running)),
    ("best so far", 0, lambda shape, _: shape.best_text or "-"),
    ("<", NARROW, lambda shape, _: shape.best),
)
_STACK: tuple[Column, ...] = (
    ("<running", 0, lambda stack, _: stack.label),
    ("trials", 0, lambda stack, _: _trials(stack)),
    ("step", 0, lambda stack, _: f"{stack.step}/{stack.steps}"),
    ("", NARROW, lambda stack, width: _bar(stack, 20 if width >= WIDE else 8)),
    ("loss", 0, lambda stack, _: _loss(stack)),
    ("for", 0, lambda stack, _: spell_time(stack.running_s)),
    ("<on", NARROW, lambda stack, _: f"{stack.host} {stack.pid}" if stack.host else "-"),
)


def _table(width: int, columns: Sequence[Column], rows: Sequence[ShapeProgress | RunningStack]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    fitting = [(name, text) for name, least, text in columns if width >= least]
    for name, _ in fitting:
        heading = name[:3] if name in ("diverged", "failed") and width < NARROW else name.removeprefix("<")
        at_left = name.startswith("<")
        ratio = 1 if at_left and name == fitting[-1][0] else None
        justify: JustifyMethod = "left" if at_left else "right"
        table.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis", ratio=ratio)
    for row in rows:
        table.add_row(*(Text(text(row, width)) for _, text in fitting))
    return table


def _cut(text: str, width: int) -> Text:
    line = Text(text, no_wrap=True, overflow="ellipsis")
    line.truncate(max(1, width - 1), overflow="ellipsis")
    return line
