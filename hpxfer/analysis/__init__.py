"""Analysis: from measured losses to optima, drift, regret and a verdict. Pure; numpy, pandas and scipy only."""

from hpxfer.analysis.drift import Drift
from hpxfer.analysis.findings import Finding, ShapeFinding, TransferReport
from hpxfer.analysis.optimum import Optimum
from hpxfer.analysis.report import Results, report_line, transfer_report

__all__ = [
    "Drift",
    "Finding",
    "Optimum",
    "Results",
    "ShapeFinding",
    "TransferReport",
    "report_line",
    "transfer_report",
]
