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

# The chance, per side, of "transfers" for an optimum that moved by exactly MOVE_OCTAVES, and of "drifts" for such a
# one. The verdict therefore rests on the 98% interval of the move.
ERROR_RATE = 0.01

# The confidence of every interval that a report prints or a figure draws, e.g. that of an optimum, a drift or a fit.
CONFIDENCE = 0.95

# How many standard errors a difference must exceed to count as seen. 95% of normal errors lie within two.
NUM_SE = 2.0

# A parabola has three coefficients.
MIN_POINTS = 3

# How far from the lowest point of a basin cells are fitted: 2.5 octaves, five points of the usual octave grid. Further
# out the loss has risen by 6% and more, and is no longer a parabola with a small cubic part.
LOCAL_OCTAVES = 2.5

# The points on each side of the lowest one that are fitted however far out they are: on a coarse grid, LOCAL_OCTAVES
# alone would leave too few for a parabola.
LOCAL_POINTS = 2

# A cell is a cliff, outside of the basin, if its rise over its squared distance is this many times the median one:
# training blew up without a NaN. For an asymmetry that a cubic can follow, the ratio stays below three.
CLIFF_RATIO = 8.0

# If the scatter about a fit (of cells about basins, of optima about a line) has a lower chance than this under the
# noise of seeds, all errors grow by the ratio of the two, as the Particle Data Group scales them (RPP 2024, 5.2.2).
MISFIT_CHANCE = 0.05

# The rises of the loss, as fractions of it, at which the width of a basin is measured.
WIDTH_SHARES = (0.0025, 0.01)

# Loss curves of several shapes count as one while they differ by less than this fraction of the loss.
COLLAPSE_SHARE = REGRET_SHARE

# The number of draws of the bootstrap. The 2.5% quantile of 2,000 draws is known to within 6% of a standard error.
NUM_DRAWS = 2000

# The name of the parameterization that all others are compared with.
CONTROL = "sp"
