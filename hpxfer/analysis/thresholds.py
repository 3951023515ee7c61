"""The numbers that the verdict rests on, each with its reason. Nothing else in the analysis holds a threshold."""

from __future__ import annotations

# The loss near an optimum is quadratic in log2 LR, and within 0.25% of its minimum over about one octave: half an
# octave off costs 0.25%, a whole one 1%. So 1% of the loss is one step of the usual octave grid, which a sweep
# cannot tell from "did not move".
REGRET_SHARE = 0.01

# Standard errors that a difference must exceed to count as seen: 95% of a normal error lies within two.
NUM_SE = 2.0

# A parabola has three coefficients.
MIN_POINTS = 3

# The label of the parameterization that every other one is held against.
CONTROL = "sp"
