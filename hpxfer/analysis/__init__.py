"""Analysis: a sweep's results, handed to the verdict and to every statistic.

report      the findings on one HP of a sweep, from the room `verdict`
statistics  what a report says besides the verdict, one file per statistic
followup    the sweep that would decide an undecided verdict
analyze     all of it
"""

from hpxfer.analysis.analyze import Analysis, analyze, analyze_lines, transfer_report
from hpxfer.analysis.followup import FollowUp, followup_sweep
from hpxfer.analysis.statistics import Chart, Found, Inputs, Statistic, register_statistic
from hpxfer.verdict import Drift, Finding, Optimum, ShapeFinding, TransferReport, report_line

__all__ = [
    "Analysis",
    "Chart",
    "Drift",
    "Finding",
    "FollowUp",
    "Found",
    "Inputs",
    "Optimum",
    "ShapeFinding",
    "Statistic",
    "TransferReport",
    "analyze",
    "analyze_lines",
    "followup_sweep",
    "register_statistic",
    "report_line",
    "transfer_report",
]
