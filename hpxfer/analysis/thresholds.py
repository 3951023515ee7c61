"""The numbers that the verdict rests on, each with its reason. Nothing else in the analysis holds a threshold."""

from __future__ import annotations

# The loss near an optimum is quadratic in log2 LR, and within 0.25% of its minimum over about one octave: half an
# octave off costs 0.25%, a whole one 1%. So 1% of the loss is one step of the usual octave grid, which a sweep
# cannot tell from "did not move".
REGRET_SHARE = 0.01

# How far the optimum may move between the smallest and the largest scale: one octave, which by the rule above costs
# 1%. It bounds the move over the range that was measured, not a slope: two shapes an octave apart say little about
# the slope beyond them, and nothing is claimed there.
MOVE_OCTAVES = 1.0

# The chance of saying "transfers" of an optimum that moved by just MOVE_OCTAVES, or "drifts" of one that did, a side:
# the verdict rests on the 98% interval of the move. The intervals that are printed are 95% ones.
ERROR_RATE = 0.01
CONFIDENCE = 0.95

# Standard errors that a difference must exceed to count as seen: 95% of a normal error lies within two.
NUM_SE = 2.0

# A parabola has three coefficients.
MIN_POINTS = 3

# A basin is fitted within so many octaves of its lowest point, five points of the usual octave grid: further out the
# rise is 6% and more, and no longer a parabola with a small cubic part. A coarser grid takes two points a side.
LOCAL_OCTAVES = 2.5
LOCAL_POINTS = 2

# A cell whose rise over the squared distance is this many times the median one stands on a cliff: it has blown up
# without a NaN, and is outside of the basin. An asymmetry that a cubic can follow stays below three.
CLIFF_RATIO = 8.0

# Below this chance, what the fit leaves over (of cells around basins, of optima around a line) is more than the seeds
# explain, and all errors grow by the ratio of the two, as the Particle Data Group scales (RPP 2024, section 5.2.2).
MISFIT_CHANCE = 0.05

# Shares of the loss at which the width of a basin is told.
WIDTH_SHARES = (0.0025, 0.01)

# Shares of the loss up to which loss curves of several shapes count as one: as much as REGRET_SHARE.
COLLAPSE_SHARE = REGRET_SHARE

# Draws of the bootstrap. The 2.5% quantile of 2,000 is itself known to 5% of an error.
NUM_DRAWS = 2000

# The label of the parameterization that every other one is held against.
CONTROL = "sp"
