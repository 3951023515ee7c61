"""The infinite limits of the papers, solved: what a mixture of MLPs of any size approaches

No network is trained here, and nothing is differentiated. docs/limit.md says what the limits are, and how they are
solved.
"""

from hpxfer.limit.bias_rate import BiasRateOptions, bias_rate
from hpxfer.limit.deviations import ALPHA, MOST_UNSEEN, POWER, Deviations, Mean, mean_of
from hpxfer.limit.network import Batch, Floats, Given, Network
from hpxfer.limit.solve import solve
from hpxfer.limit.solved import WHAT, Limit, Series, save, with_error
