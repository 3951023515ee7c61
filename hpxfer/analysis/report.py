"""The transfer report of a sweep: its stored losses, handed to the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.search.verdict_rules import judged_by
from hpxfer.verdict.report import TransferReport, report_line

if TYPE_CHECKING:
    from hpxfer.results import Results


def transfer_report(results: Results, hp: str | None = None, loss: str | None = None) -> TransferReport:
    """Return the report on one HP of a sweep. By default the sweep names the HP, and the loss it is judged by."""
    spec = results.spec
    hp, judged = hp or spec.judged_hp, judged_by(spec, loss)
    return report_line(results.line(hp, judged.name), sweep=results.name, hp=hp, loss=judged, rules=results.rules)
