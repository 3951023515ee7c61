"""JudgedTable: the verdicts on a table, as text, as data and as the page of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hpxfer.analysis.analyze import Analysis
from hpxfer.outside.runs import Run
from hpxfer.verdict.report import TransferReport
from hpxfer.verdict.rules import Rules
from hpxfer.verdict.what_to_add import asks_nothing

if TYPE_CHECKING:
    from hpxfer.report.contents import Report

# What would turn `stays` into `transfers`, for each of `Finding.lacking`.
SHOWS = {
    "no control": "an arm whose optimum is expected to move (--control ARM)",
    "no arm beside the control": "runs of the arm that the control is compared with",
    "no base named": "the shape that the HP was tuned at (--base scale=SIZE)",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class JudgedTable:
    """A table with its verdicts. Made by `hpxfer.judge`."""

    name: str
    where: str  # the file, or `table`
    columns: Mapping[str, str]  # column -> the table's own
    runs: tuple[Run, ...]  # those that were judged; a run at the base may be on several axes
    rules: Rules
    lines: Mapping[str, pd.DataFrame]  # HP -> what was judged, the judged HP first
    analysis: Analysis

    @property
    def report(self) -> TransferReport:
        """The report on the judged HP."""
        return self.analysis.reports[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, joined or left out."""
        return self.analysis.notes

    def summary(self) -> str:
        """Return the verdicts on the judged HP as plain text, and what was assumed, joined or left out."""
        return self.report.summary() + self._notes()

    def to_text(self) -> str:
        """Return every finding with its reasons and tables."""
        return "\n".join(report.to_text() for report in self.analysis.reports) + self._notes()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: the report on the judged HP, and notes."""
        return {**self.report.to_dict(), "notes": list(self.notes)}

    def next_step(self) -> str:
        """Return what to do next, in one sentence."""
        return f"Next: {next(_steps(self))}."

    def page(self) -> Report:
        """Return the page with the verdicts, the figures that a table can feed, and every run. It needs matplotlib."""
        from hpxfer.outside.page import page_of

        return page_of(self)

    def write(self, folder: str | Path) -> tuple[Path, ...]:
        """Write report.html, its figures and transfer.png into a folder, and return the files.

        Raises HpxferError if they cannot be written.
        """
        from hpxfer.outside.page import write_page

        return write_page(self, Path(folder))

    def _notes(self) -> str:
        return "".join(f"- {note}\n" for note in self.notes)


def _steps(judged: JudgedTable) -> Iterator[str]:
    """Yield what to do next, the most useful first."""
    report = judged.report
    shown = [finding for finding in report.findings if not finding.is_control] or list(report.findings)
    for finding in shown:
        if finding.verdict == "undecided" and finding.to_add:
            first = finding.to_add[0]
            which = f"for {finding.parameterization} along {finding.axis}"
            yield f"{which}, {first.text if asks_nothing(first) else f'add {first.text}'}"
    staying = [finding for finding in shown if finding.verdict in ("transfers", "stays")]
    if staying:
        lacking = dict.fromkeys(SHOWS[why] for finding in staying for why in finding.lacking if why in SHOWS)
        more = f"; {' and '.join(lacking)} would show more" if lacking else ""
        yield f"use the {report.hp} tuned at the base up to the largest scale of the table, and not beyond{more}"
    yield f"tune {report.hp} at the scale that you need"
