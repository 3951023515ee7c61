"""Analysis: from measured losses to optima, drift, regret and a verdict. Pure; numpy, pandas and scipy only."""

from hpxfer.analysis.drift import Drift
from hpxfer.analysis.everything import Analysis, analyze
from hpxfer.analysis.findings import Finding, ShapeFinding, TransferReport
from hpxfer.analysis.followup import FollowUp, followup_sweep
from hpxfer.analysis.optimum import Optimum
from hpxfer.analysis.report import Results, report_line, transfer_report

__all__ = [
    "Analysis",
    "Drift",
    "Finding",
    "FollowUp",
    "Optimum",
    "Results",
    "ShapeFinding",
    "TransferReport",
    "analyze",
    "followup_sweep",
    "report_line",
    "transfer_report",
]
