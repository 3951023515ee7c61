"""The numbers that the verdict rests on, each with its reason. No other module of the analysis holds a threshold."""

from __future__ import annotations

# The largest regret that counts as none, as a fraction of the loss. Near an optimum the loss is quadratic in log2 LR:
# it is within 0.25% of its minimum over about one octave, so half an octave off costs 0.25% and a whole octave 1%.
# An octave is one step of the usual grid, and a sweep cannot tell a move by one step from no move.
REGRET_SHARE = 0.01

# The largest move of the optimum from the smallest to the largest scale, in octaves. One octave costs 1% of the loss,
# by the rule above. This limits the move over the measured range, not a slope: two shapes that are one octave apart
# say little about the slope beyond them, and nothing is claimed there.
MOVE_OCTAVES = 1.0

# The largest chance of being wrong at which a verdict is said: "transfers" if the HP transfers with a chance of at
# least 98%, "drifts" if it is that sure that one regret exceeds its limit, or that two optima differ by MOVE_OCTAVES.
ERROR_RATE = 0.02

# The least chance that what a verdict states must keep without any single run. Good runs are lucky by a few standard
# errors of their cell, which lowers a chance of 98% a little. One that is lower than this rests on that run.
WITHOUT_ONE = 0.8

# The confidence of the interval that `hpxfer recipe predict` gives the loss of one run. Planted laws that no fit knows
# check it (tests/studies/predict_rates.py). It is lower than CONFIDENCE, because the far tails of a loss that nobody
# measured rest on assumptions more than on losses.
PREDICTED = 0.90

# The fewest measured shapes from which the loss at another one is predicted: two tell no constant gain from a shrinking
# one.
PREDICT_SHAPES = 3

# How far beyond the largest measured scale, or below the smallest, a loss is predicted, as a factor: one doubling. The
# doubt about the gain grows with every doubling, and no published sweep here reaches far enough to check more than one.
PREDICT_REACH = 2.0

# How many standard errors a difference must exceed to count as seen. 95% of normal errors lie within two.
NUM_SE = 2.0

# The fewest cells with a loss that an optimum is claimed from.
MIN_POINTS = 3

# How far from the lowest measured cell the losses tell where the optimum is: 2.5 octaves, five points of the usual
# octave grid. Further out the loss has risen by 6% and more, and real basins have walls.
LOCAL_OCTAVES = 2.5

# The points on each side of the lowest one that count however far out they are: on a coarse grid, LOCAL_OCTAVES alone
# would leave too few.
LOCAL_POINTS = 2

# A cell may stand behind a wall, where training blew up without a NaN, if its rise over its squared distance is this
# many times the median one. Skewed basins without a wall reach five.
WALL_RATIO = 8.0

# A cell blew up, and says nothing about the optimum, if it lies this many nats above the lowest one...
BLOWN_NATS = 5.0

# ... and if its rise over its squared distance is this many times that of the other cells.
BLOWN_RATIO = 30.0

# A run stands apart from the other seeds of its cell if it ends this many times the typical noise away from them...
APART_NOISES = 6.0

# ... and this share of the cell's rise over the lowest cell: far up a wall, seeds differ by more.
APART_SHARE = 0.5

# Training died at the HP values from one to the end of the grid, and they count as diverged, if that one lies behind a
# wall or its seeds scatter widely, and all runs lie above the lowest cell by this share of its loss, ten times what
# counts as no regret...
DEAD_SHARE = 0.1

# ... and by so many times the noise near the optimum, ...
DEAD_RISE = 30.0

# ... and one of three things holds: the seeds of a cell scatter by so many times that noise, ...
DEAD_NOISES = 5.0

# ... or the first of them rises by so large a share of the lowest loss, ...
DEAD_DEPTH = 1.0

# ... or the loss no longer rises from one HP to the next: all rises lie within this share of the largest.
DEAD_FLAT = 0.15

# A shape has a basin if noise alone would scatter its mean losses so far more rarely than this.
FLAT_CHANCE = 0.01

# Cells scatter about every basin more than seeds do, and a report says so, if chance explains it more rarely than this.
MISFIT_CHANCE = 0.01

# Optima do not lie on a line if their scatter about it has a lower chance than this under their errors.
NOT_A_LINE = 0.01

# The rises of the loss, as fractions of it, at which the width of a basin is measured.
WIDTH_SHARES = (0.0025, 0.01)

# Loss curves of several shapes count as one while they differ by less than this fraction of the loss.
COLLAPSE_SHARE = REGRET_SHARE

# The chance of rejecting curves that are one, in each window of steps.
COLLAPSE_ERROR = 0.01

# The number of draws of the optima. The 2.5% quantile of 2,000 draws is known to within 6% of a standard error.
NUM_DRAWS = 2000
