"""The infinite limits of the papers, solved: what a mixture of MLPs of any size approaches

Numpy and scipy alone: no network is trained here, and nothing is differentiated. docs/limit.md says what the limits
are, and how they are solved.
"""

from hpxfer.limit.network import Batch, Given, Network
from hpxfer.limit.solve import Limit, Series, solve

__all__ = ["Batch", "Given", "Limit", "Network", "Series", "solve"]
