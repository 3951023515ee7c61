"""solve: the limit of a network's training, with the error of the solver."""

from __future__ import annotations

from hpxfer.limit.given import Given
from hpxfer.limit.network import Network
from hpxfer.limit.outcome import Limit


def solve(network: Network, given: Given, *, sites: int = 32768, seeds: int = 4) -> Limit:
    """Return the limit. `sites` is the size of every sampled population, and `seeds` the number of its draws.

    Raise HpxferError if the limit of this network is not derived or not affordable, or if the losses grow.
    """
    raise NotImplementedError
