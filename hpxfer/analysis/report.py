"""The transfer report of a sweep: its stored losses, handed to the verdict."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from hpxfer.analysis.own_bases import difference_at_base
from hpxfer.search.verdict_rules import judged_by
from hpxfer.verdict.loss import JudgedLoss
from hpxfer.verdict.report import JudgedLine, TransferReport, judge_line

if TYPE_CHECKING:
    from hpxfer.results import Results


def transfer_report(results: Results, hp: str | None = None, loss: str | None = None) -> TransferReport:
    """Return the report on one HP of a sweep. By default the sweep names the HP, and the loss it is judged by."""
    spec = results.spec
    hp, judged = hp or spec.judged_hp, judged_by(spec, loss)
    return judged_line(results, results.line(hp, judged.name), hp, judged).report


def judged_line(results: Results, line: pd.DataFrame, hp: str, loss: JudgedLoss) -> JudgedLine:
    """Return the report on a line of a sweep, with its estimates."""
    differ = partial(difference_at_base, results)
    return judge_line(line, sweep=results.name, hp=hp, loss=loss, rules=results.rules, differ=differ)
