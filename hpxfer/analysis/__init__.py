"""Analysis: from measured losses to a verdict. Pure; needs numpy, pandas and scipy only.

The files of this room are the chain of the verdict, in this order:

    loss_grid                                the losses of each cell
    local_fit, bootstrap, optimum, estimate  the optimum of each shape, with its interval
    drift                                    how far the optimum moves with scale
    transfer, noise, regret                  the HP that is transferred, and its regret at each shape
    verdict, thresholds                      whether it transfers, and why
    what_to_add, followup                    what would decide an undecided verdict
    report, summary, text                    the findings as data and as text
    analyze                                  all of it, with the statistics

The folder `statistics` holds what a report says besides the verdict, one file per statistic.
"""

from hpxfer.analysis.analyze import Analysis, analyze
from hpxfer.analysis.drift import Drift
from hpxfer.analysis.findings import Finding, ShapeFinding
from hpxfer.analysis.followup import FollowUp, followup_sweep
from hpxfer.analysis.optimum import Optimum
from hpxfer.analysis.report import TransferReport, report_line, transfer_report
from hpxfer.analysis.statistics import Inputs, Statistic, register_statistic

__all__ = [
    "Analysis",
    "Drift",
    "Finding",
    "FollowUp",
    "Inputs",
    "Optimum",
    "ShapeFinding",
    "Statistic",
    "TransferReport",
    "analyze",
    "followup_sweep",
    "register_statistic",
    "report_line",
    "transfer_report",
]
