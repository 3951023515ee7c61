"""The transfer report: the findings on one HP of a sweep, for every axis and parameterization."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import pandas as pd

from hpxfer.host import CONTROL, NATS, JudgedLoss, json_ready
from hpxfer.verdict.estimate import Estimates, estimate_all
from hpxfer.verdict.findings import DEFAULT_RULES, Finding, Rules, ShapeFinding
from hpxfer.verdict.judge import Differ, with_control, with_own_base
from hpxfer.verdict.loss_grid import loss_grids
from hpxfer.verdict.optimum import Optimum
from hpxfer.verdict.summary import full_text, headline, summary_text
from hpxfer.verdict.transfer import finding_of

EDGES = ("lower_edge", "upper_edge", "at_divergence")
OF_FINDING = ("axis", "parameterization", "scale_name", "verdict")
OF_SHAPE = tuple(field.name for field in fields(ShapeFinding) if field.name not in ("optimum", "curve"))
OF_OPTIMUM = tuple(field.name for field in fields(Optimum) if field.name != "kind")


@dataclass(frozen=True, kw_only=True)
class TransferReport:
    """Does one HP transfer? A finding for every axis and parameterization of a sweep, the control last on each axis."""

    sweep: str
    hp: str
    loss: str  # the loss it is judged by, as in `judge.loss`
    findings: tuple[Finding, ...]
    judged: JudgedLoss = NATS  # what that loss is
    control: str | None = CONTROL  # the arm that the others are compared with; None: nobody named one
    of_table: bool = False  # whether the losses are those of a table, which no sweep can add to

    @property
    def headline(self) -> str:
        """What to do with the HP, what that costs, and what the control would cost."""
        return headline(self.hp, self.findings, of_table=self.of_table)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data. None stands for what is missing and for +inf; `transferred` says which."""
        out: dict[str, Any] = json_ready({"headline": self.headline, **asdict(self)})
        return out

    def summary(self) -> str:
        """Return the verdicts as plain text of at most twelve lines. The first one is the headline."""
        return summary_text(self)

    def to_text(self) -> str:
        """Return the whole report as plain text: each finding with its reasons and a table of its shapes."""
        return full_text(self)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per axis, parameterization and shape, in the order of the findings.

        - `hp`, `axis`, `parameterization`, `scale_name`, `verdict`: what was judged, and how.
        - `transferred_value`: the HP value that is transferred from the base.
        - `shape`, `scale`, `is_base` and the other columns of `ShapeFinding`: best HP and loss, the loss and the regret
          of the transferred HP with its standard error (in the unit of the loss), seeds and trials.
        - `status`: what the optimum is: interior, lower_edge, upper_edge, at_divergence or none.
        - `on_edge`: whether it is at an edge of the grid or next to divergence, and so a bound.
        - `log2_value`, `low_log2`, `high_log2`, `se_log2` and the other columns of `Optimum`: log2 of the optimum, its
          95% interval and its standard error.

        A number that is not known is NaN; a regret is +inf if the transferred HP diverged.
        """
        columns = ("hp", *OF_FINDING, "transferred_value", *OF_SHAPE, "status", "on_edge", *OF_OPTIMUM)
        rows = [self._row(finding, shape) for finding in self.findings for shape in finding.shapes]
        return pd.DataFrame(rows, columns=list(columns))

    def _row(self, finding: Finding, shape: ShapeFinding) -> list[Any]:
        optimum = shape.optimum
        row = [
            *(self.hp, *(getattr(finding, name) for name in OF_FINDING), finding.base_value),
            *(getattr(shape, name) for name in OF_SHAPE),
            *(optimum.kind, optimum.kind in EDGES, *(getattr(optimum, name) for name in OF_OPTIMUM)),
        ]
        return [math.nan if value is None else value for value in row]


@dataclass(frozen=True, kw_only=True, eq=False)
class JudgedLine:
    """The line of one HP: its report, and the estimates that the report rests on."""

    report: TransferReport
    estimates: tuple[Estimates, ...]  # by axis and parameterization

    @property
    def hp(self) -> str:
        return self.report.hp

    @cached_property
    def by_key(self) -> dict[tuple[str, str], Estimates]:
        """Its estimates by axis and parameterization."""
        return {estimates.grid.key: estimates for estimates in self.estimates}


def judge_line(
    line: pd.DataFrame,
    *,
    sweep: str,
    hp: str,
    loss: JudgedLoss = NATS,
    rules: Rules = DEFAULT_RULES,
    of_table: bool = False,
    differ: Differ = lambda one, other: None,
) -> JudgedLine:
    """Return the report on a line, with its estimates. The noise of seeds is pooled over the whole line.

    `sweep` is the name of the sweep or, `of_table`, of the table. `differ` says what tells two arms apart at the base.
    """
    estimates = estimate_all(loss_grids(line, loss), extra_sd=rules.extra_sd)
    findings = [finding_of(found, rules) for found in estimates]
    findings.sort(key=lambda finding: (finding.axis, finding.is_control, finding.parameterization))
    compared = tuple(with_control(with_own_base(finding, findings, differ), findings, rules) for finding in findings)
    report = TransferReport(sweep=sweep, hp=hp, loss=loss.name, judged=loss, findings=compared)
    report = replace(report, control=rules.control, of_table=of_table)
    return JudgedLine(report=report, estimates=estimates)


def report_line(
    line: pd.DataFrame, *, sweep: str, hp: str, loss: JudgedLoss = NATS, rules: Rules = DEFAULT_RULES
) -> TransferReport:
    """Return the report on a line, a frame as `Results.line` gives it."""
    return judge_line(line, sweep=sweep, hp=hp, loss=loss, rules=rules).report
