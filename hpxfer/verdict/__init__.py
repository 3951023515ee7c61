"""The verdict: from measured losses to "does this HP transfer?". Pure; needs numpy, pandas and scipy only.

The files are a chain, in this order:

    thresholds                         the numbers that the verdict rests on
    loss_grid, shared_base             the losses of each cell, and which arms share a base
    measured, odd_runs, noise          which cells tell where the optimum is, and how far seeds differ
    basins, posterior                  joint draws of the basins of all shapes
    optimum, drift, estimate           optima, drift and move, read from the draws
    chances, transfer                  the HP that is transferred, and what it costs at each shape
    findings, judge                    whether it transfers, and why
    lacks, what_to_add                 what would decide an undecided verdict
    words, summary, report             the findings as phrases, as texts and as data
"""

from hpxfer.verdict.drift import DrawnOptima, Drift, Step, fit_drift
from hpxfer.verdict.estimate import Estimates, best_cell, estimate_all
from hpxfer.verdict.findings import DEFAULT_RULES, Addition, Finding, Rules, ShapeFinding, Verdict, compared
from hpxfer.verdict.loss_grid import COLUMNS, STATUSES, LossGrid, SeedLosses, ShapeLosses, loss_grids
from hpxfer.verdict.optimum import Kind, Optimum
from hpxfer.verdict.report import JudgedLine, TransferReport, judge_line, report_line
from hpxfer.verdict.shared_base import with_shared_bases
from hpxfer.verdict.summary import headline
from hpxfer.verdict.transfer import find
from hpxfer.verdict.what_to_add import seeds_at_noise, seeds_needed
from hpxfer.verdict.words import conclusion, facts, misfit_text, shape_table, verdict_line, verdict_text
