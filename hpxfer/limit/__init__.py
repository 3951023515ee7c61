"""The infinite limits of the papers, solved: what a mixture of MLPs of any size approaches

Numpy and scipy alone: no network is trained here, and nothing is differentiated. docs/limit.md says what the limits
are, and how they are solved.
"""

from hpxfer.limit.given import Batch, Given
from hpxfer.limit.network import Network
from hpxfer.limit.outcome import Limit, Series
from hpxfer.limit.solve import solve

__all__ = ["Batch", "Given", "Limit", "Network", "Series", "solve"]
