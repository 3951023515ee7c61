"""The live progress line of a run: one line that rewrites itself on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hpxfer.driver import Tally
from hpxfer.plan_text import spell_time
from hpxfer.train.event import Event

PLAIN_LINE_S = 10.0


def status_text(tally: Tally, elapsed_s: float) -> str:
    """Return the line: trials done, failed and diverged, tokens/s, and the time left at that rate."""
    trials = f"trials {tally.ended}/{tally.num_left} done, {tally.failed} failed, {tally.diverged} diverged"
    if not tally.tokens or elapsed_s <= 0:
        return f"{trials} | starting workers"
    rate = tally.tokens / elapsed_s
    left_s = max(0.0, tally.tokens_left - tally.tokens) / rate
    return f"{trials} | {rate:,.0f} tokens/s | ETA {spell_time(left_s)}"


class ProgressLine:
    """Shows a run's progress on stderr while it is entered. Call it with every event."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tally: Tally | None = None
        self._started = time.monotonic()
        self._rate_since: float | None = None
        self._last_plain = self._started
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render, transient=True)

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()
        if self._tally is not None:
            self._console.print(self._render())

    def __call__(self, event: Event, tally: Tally) -> None:
        """Take note of an event; on a terminal the line refreshes by itself."""
        now = time.monotonic()
        if self._rate_since is None:
            # The rate counts from here: workers need seconds to start, and that is no rate.
            self._rate_since = now - 1.0
        self._tally = tally
        if not self._console.is_terminal and now - self._last_plain >= PLAIN_LINE_S:
            self._last_plain = now
            self._console.print(self._render())

    def _render(self) -> Text:
        if self._tally is None or self._rate_since is None:
            return Text(f"starting workers, {time.monotonic() - self._started:.0f} s")
        return Text(status_text(self._tally, time.monotonic() - self._rate_since))
