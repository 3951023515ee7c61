"""The verdict: from measured losses to "does this HP transfer?". Pure; needs numpy, pandas and scipy only.

The files are a chain, in this order:

    loss_grid, measured, noise         the losses of each cell, and how far seeds differ
    basins, posterior                  joint draws of the basins of all shapes
    optimum, drift, estimate, basin    optima, drift and move, read from the draws
    chances, transfer                  the HP that is transferred, and what it costs at each shape
    thresholds, rules, judge           whether it transfers, and why
    hp_values, lacks, what_to_add      what would decide an undecided verdict
    shape_names, bases                 which shape is large enough to tune at
    report, summary, text              the findings as data and as text
"""

from hpxfer.verdict.bases import BaseReading, TunedAt, read_bases
from hpxfer.verdict.basins import Ints
from hpxfer.verdict.drift import DrawnOptima, Drift, fit_drift, half_width, interval, mean_interval
from hpxfer.verdict.estimate import Estimates, best_cell, estimate_all
from hpxfer.verdict.findings import Addition, Finding, ShapeFinding, Verdict
from hpxfer.verdict.hp_values import value_text
from hpxfer.verdict.loss_grid import (
    COLUMNS,
    NATS,
    STATUSES,
    Bools,
    Floats,
    JudgedLoss,
    LossGrid,
    SeedLosses,
    ShapeLosses,
    loss_grids,
)
from hpxfer.verdict.optimum import Kind, Optimum
from hpxfer.verdict.posterior import RANDOM_SEED
from hpxfer.verdict.report import JudgedLine, TransferReport, judge_line, report_line
from hpxfer.verdict.rules import DEFAULT_RULES, Rules
from hpxfer.verdict.shape_names import AxisShape, find_shape, is_control, name_of, scale_text, shape_label
from hpxfer.verdict.shared_base import with_shared_bases
from hpxfer.verdict.summary import compared, headline
from hpxfer.verdict.text import (
    conclusion,
    drift_text,
    hp_text,
    interval_text,
    likely_text,
    misfit_text,
    move_text,
    optimum_text,
    regret_number_text,
    transferred_text,
    verdict_line,
    verdict_text,
)
from hpxfer.verdict.thresholds import (
    COLLAPSE_ERROR,
    COLLAPSE_SHARE,
    CONFIDENCE,
    CONTROL,
    ERROR_RATE,
    LOCAL_OCTAVES,
    MOVE_OCTAVES,
    NUM_SE,
    PREDICT_REACH,
    PREDICT_SHAPES,
    PREDICTED,
    REGRET_SHARE,
)
from hpxfer.verdict.tied import equal_lowest, lowest_of, most_central
from hpxfer.verdict.transfer import find
from hpxfer.verdict.what_to_add import asks_nothing, seeds_at_noise
