"""What training reports while it runs. Knows no torch, so that drivers need none."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.result import TrialResult


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Training tokens of a stack, done or spared by an early stop, since its last report."""

    tokens: int


Event = Progress | tuple[TrialResult, ...]
