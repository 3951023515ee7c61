"""What a live page shows at one moment, kept by the server's loop and read by the threads that answer browsers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hpxfer.host.output import spell_time
from hpxfer.live.judging import Judging
from hpxfer.live.page import RunPart, run_html
from hpxfer.progress.watch import RunView

# A page asks every two seconds while it can be seen. Without a question for so long, nobody looks.
WATCHED_S = 15.0


class LiveState:
    """The last view of a run, or why there is none, and the last report on it."""

    def __init__(self, where: str, judging: Judging, clock: Callable[[], float] = time.monotonic) -> None:
        self.where = where
        self._judging, self._clock = judging, clock
        self._view: RunView | None = None
        self._problem = ""
        self._asked_at: float | None = None

    @property
    def is_watched(self) -> bool:
        """Whether a page has asked lately."""
        return self._asked_at is not None and self._clock() - self._asked_at < WATCHED_S

    def show(self, view: RunView) -> None:
        """Show this view from now on."""
        self._view, self._problem = view, ""

    def show_problem(self, text: str) -> None:
        """Show from now on why the folder cannot be read. The last view stays."""
        self._problem = text

    def contents(self) -> str:
        """Return the sections of the last report; empty without one."""
        return self._judging.judged.contents

    def ask(self) -> dict[str, Any]:
        """Return what a page shows now, as JSON-ready data, and note that a page has asked.

        `run` is the part about the run as HTML. The page fetches the report again when the number `report` grows.
        """
        self._asked_at = self._clock()
        view, problem, judged = self._view, self._problem, self._judging.judged
        status = None if view is None else view.run_status
        part = RunPart(view=view, problem=problem, report=self._report_text())
        share = f"{status.ended} of {status.num_left} · " if status is not None else ""
        return {
            "state": "unknown" if view is None else view.state,
            "title": f"{share}{self.where}",
            "run": run_html(part),
            "report": judged.number,
        }

    def _report_text(self) -> str:
        """Return in words how old the report is, and whether there will be a newer one."""
        judged, is_busy = self._judging.judged, self._judging.is_busy
        age = spell_time(self._clock() - judged.made_at)
        if judged.why_not and not is_busy:
            last = f"The report below was made {age} ago." if judged.number else "There is no report yet."
            return f"{last} The newest results cannot be judged: {judged.why_not}."
        if not judged.number:
            return "The first report is being made." if is_busy else "There is no report yet."
        return f"The report below was made {age} ago." + (" New results are being judged." if is_busy else "")
