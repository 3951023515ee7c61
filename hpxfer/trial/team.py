"""Team: the place of a process among those that train a stack together. The module needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Team:
    """One rank of a stack: how it finds the others, and how long it waits for them."""

    rank: int
    world: int
    address: str  # HOST:PORT of the store of rank 0
    timeout_s: float
