"""The infinite limits of the papers, solved: what a mixture of MLPs of any size approaches

Numpy and scipy alone: no network is trained here, and nothing is differentiated. docs/limit.md says what the limits
are, and how they are solved.
"""

from hpxfer.limit.given import Batch, Given
from hpxfer.limit.network import Network
from hpxfer.limit.solve import solve
from hpxfer.limit.text import Limit, Series

__all__ = ["Batch", "Given", "Limit", "Network", "Series", "solve"]
