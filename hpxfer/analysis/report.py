"""The transfer report: the findings on one HP of a sweep, for every axis and parameterization."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from hpxfer.analysis.bootstrap import SeedNoise
from hpxfer.analysis.estimate import Estimates, estimate_all
from hpxfer.analysis.find import finding_of
from hpxfer.analysis.findings import Finding, ShapeFinding
from hpxfer.analysis.loss_grid import loss_grids
from hpxfer.analysis.summary import full_text, summary_text
from hpxfer.analysis.verdict import with_control
from hpxfer.host.output import json_ready

if TYPE_CHECKING:
    from hpxfer.results import Results

EDGES = ("lower_edge", "upper_edge", "at_divergence")
FRAME = (
    *("axis", "parameterization", "shape", "scale_name", "scale", "is_base", "verdict", "hp", "transferred_value"),
    *("status", "on_edge", "optimum_log2", "low_log2", "high_log2", "se_log2", "best_value", "best_loss_nats"),
    *("transferred", "transferred_loss_nats", "regret_nats", "regret_se_nats", "regret_percent"),
    *("num_seeds", "num_diverged", "num_missing"),
)


@dataclass(frozen=True, kw_only=True)
class TransferReport:
    """Does one HP transfer? A finding for every axis and parameterization of a sweep, the control last on each axis."""

    sweep: str
    hp: str
    loss: str  # the loss it is judged by: validation | final_window
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data. None stands for what is missing and for +inf; `transferred` says which."""
        out: dict[str, Any] = json_ready(asdict(self))
        return out

    def summary(self) -> str:
        """Return the verdicts as plain text of at most twelve lines. The last line says what to do with them."""
        return summary_text(self.sweep, self.hp, self.loss, self.findings)

    def to_text(self) -> str:
        """Return the whole report as plain text: each finding with its reasons and a table of its shapes."""
        return full_text(self.sweep, self.hp, self.loss, self.findings)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per axis, parameterization and shape, in the order of the findings.

        - `axis`, `parameterization`, `shape`, `scale_name`, `scale`, `is_base`: which shape it is.
        - `verdict`: that of the axis and parameterization.
        - `hp`, `transferred_value`: the HP, and its value that is transferred from the base.
        - `status`: what the optimum is: interior, lower_edge, upper_edge, at_divergence or none.
        - `on_edge`: whether it is at an edge of the grid or next to divergence, and not between worse neighbors.
        - `optimum_log2`, `low_log2`, `high_log2`, `se_log2`: log2 of the optimum, its 95% interval and standard error.
        - `best_value`, `best_loss_nats`: the best HP of the grid, and its loss.
        - `transferred`, `transferred_loss_nats`: how the transferred HP did (measured, diverged or missing), its loss.
        - `regret_nats`, `regret_se_nats`, `regret_percent`: the difference of both losses; +inf if it diverged.
        - `num_seeds`, `num_diverged`, `num_missing`: seeds, and trials that diverged or have no result.

        What is not known is NaN.
        """
        rows = [_frame_row(self.hp, finding, shape) for finding in self.findings for shape in finding.shapes]
        return pd.DataFrame(rows, columns=list(FRAME))


def _frame_row(hp: str, finding: Finding, shape: ShapeFinding) -> dict[str, Any]:
    optimum = shape.optimum
    known = {
        "axis": finding.axis,
        "parameterization": finding.parameterization,
        "shape": shape.shape,
        "scale_name": finding.scale_name,
        "scale": shape.scale,
        "is_base": shape.is_base,
        "verdict": finding.verdict,
        "hp": hp,
        "transferred_value": finding.base_value,
        "status": optimum.kind,
        "on_edge": optimum.kind in EDGES,
        "optimum_log2": optimum.log2_value,
        "low_log2": optimum.low_log2,
        "high_log2": optimum.high_log2,
        "se_log2": optimum.se_log2,
        "best_value": shape.best_value,
        "best_loss_nats": shape.best_loss,
        "transferred": shape.transferred,
        "transferred_loss_nats": shape.transferred_loss,
        "regret_nats": shape.regret_nats,
        "regret_se_nats": shape.regret_se_nats,
        "regret_percent": shape.regret_percent,
        "num_seeds": shape.num_seeds,
        "num_diverged": shape.num_diverged,
        "num_missing": shape.num_missing,
    }
    return {name: math.nan if value is None else value for name, value in known.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class JudgedLine:
    """The line of one HP: its report, and the estimates and the noise of seeds that the report rests on."""

    report: TransferReport
    estimates: tuple[Estimates, ...]  # by axis and parameterization
    noise: SeedNoise | None

    @property
    def hp(self) -> str:
        return self.report.hp

    @cached_property
    def by_key(self) -> dict[tuple[str, str], Estimates]:
        """Its estimates by axis and parameterization."""
        return {estimates.fitted.grid.key: estimates for estimates in self.estimates}


def judge_line(line: pd.DataFrame, *, sweep: str, hp: str, loss: str) -> JudgedLine:
    """Return the report on a line, with its estimates. The noise of seeds is pooled over the whole line."""
    estimates, noise = estimate_all(loss_grids(line))
    findings = [finding_of(found) for found in estimates]
    findings.sort(key=lambda finding: (finding.axis, finding.is_control, finding.parameterization))
    compared = tuple(with_control(finding, findings) for finding in findings)
    report = TransferReport(sweep=sweep, hp=hp, loss=loss, findings=compared)
    return JudgedLine(report=report, estimates=estimates, noise=noise)


def report_line(line: pd.DataFrame, *, sweep: str, hp: str, loss: str) -> TransferReport:
    """Return the report on a line, a frame as `Results.line` gives it."""
    return judge_line(line, sweep=sweep, hp=hp, loss=loss).report


def transfer_report(results: Results, hp: str | None = None, loss: str | None = None) -> TransferReport:
    """Return the report on one HP of a sweep. By default the sweep names the HP, and the loss it is judged by."""
    hp = hp or results.spec.judged_hp
    loss = loss or results.spec.judge.loss
    return report_line(results.line(hp, loss), sweep=results.spec.name, hp=hp, loss=loss)
