"""The page of a run that is under way: report.html is made anew as results come, for a small share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType

from hpxfer.errors import HpxferError, first_line
from hpxfer.host import write_folder
from hpxfer.progress import RunCounts
from hpxfer.report.contents import make_report
from hpxfer.report.html import to_html
from hpxfer.report.write import garbage_collection_paused, source_of
from hpxfer.results import load_results
from hpxfer.trial import Ended, Event, Stack

SHARE = 0.03  # of the wall time, at most
PRESUMED_S = 1.0  # what the first page is presumed to cost: a run that is shorter than half a minute has none


class PageUnderWay:
    """Keeps the page of a results folder up to date while entered. Call it with every event of the run.

    A thread makes the page, so that trials are handed out meanwhile. Whatever goes wrong with it is said once, and ends
    no run. A run that comes to its end waits for the page that is being made, because the final report draws with the
    same library. A run that ends early does not wait, and no page is written after it.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._say, self._clock = folder, say, clock
        self._start, self._spent, self._cost = clock(), 0.0, PRESUMED_S
        self._is_due = self._is_over = False
        self._said: set[str] = set()
        self._writing = Lock()
        self._thread: Thread | None = None

    def __enter__(self) -> PageUnderWay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._writing:
            self._is_over = True
        if self._thread is not None and kind is None:
            self._thread.join()

    def __call__(self, stack: Stack, event: Event, counts: RunCounts) -> None:
        """Note an event, and have the page made anew if there are new results and it has rested for long enough."""
        self._is_due |= isinstance(event, Ended)
        is_busy = self._thread is not None and self._thread.is_alive()
        if not self._is_due or is_busy or self._too_early():
            return
        left = counts.run_status().eta_s
        if left is None or left > self._cost:  # else the final report comes first
            self._is_due = False
            self._thread = Thread(target=self._make, name="hpxfer-page", daemon=True)
            self._thread.start()

    def _too_early(self) -> bool:
        return self._spent + self._cost > SHARE * (self._clock() - self._start)

    def _make(self) -> None:
        began = self._clock()
        try:
            with garbage_collection_paused():
                source = source_of(load_results(self._folder), is_running=True)
                page = to_html(make_report([source])).encode()
            with self._writing:
                if not self._is_over:
                    path = self._folder / "report.html"
                    write_folder({path: lambda file: file.write(page)}, self._folder, "report", "--results")
        except HpxferError as error:
            self._say_once(str(error))
        except Exception as error:
            self._say_once(f"hpxfer has a bug: {type(error).__name__}: {first_line(error)}")
        self._cost = self._clock() - began
        self._spent += self._cost

    def _say_once(self, problem: str) -> None:
        if problem not in self._said and not self._is_over:
            self._said.add(problem)
            self._say(f"no page while the run is under way: {problem}")
