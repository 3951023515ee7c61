"""The infinite limits of the papers, solved: what a mixture of MLPs of any size approaches

No network is trained here, and nothing is differentiated. docs/limit.md says what the limits are, and how they are
solved.
"""

from hpxfer.limit.bias_rate import BiasRateOptions, bias_rate
from hpxfer.limit.figures import against_figures, bias_rate_figure, limit_figure
from hpxfer.limit.network import Batch, Floats, Given, Network
from hpxfer.limit.network_file import load_network
from hpxfer.limit.solve import Limit, Series, solve
from hpxfer.limit.sweep.compare import against
from hpxfer.limit.sweep.of_trials import Claimed, claimed_network, limit_of_sweep
from hpxfer.limit.sweep.seen import SeedLimits, seen_by
from hpxfer.limit.sweep.statistics import ALPHA, MOST_UNSEEN, POWER, Deviations, Mean, mean_of
from hpxfer.limit.text import WHAT, Solved, save, with_error

__all__ = [
    "ALPHA",
    "MOST_UNSEEN",
    "POWER",
    "WHAT",
    "Batch",
    "BiasRateOptions",
    "Claimed",
    "Deviations",
    "Floats",
    "Given",
    "Limit",
    "Mean",
    "Network",
    "SeedLimits",
    "Series",
    "Solved",
    "against",
    "against_figures",
    "bias_rate",
    "bias_rate_figure",
    "claimed_network",
    "limit_figure",
    "limit_of_sweep",
    "load_network",
    "mean_of",
    "save",
    "seen_by",
    "solve",
    "with_error",
]
