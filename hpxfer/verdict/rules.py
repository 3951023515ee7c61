"""The rules of a verdict that a sweep may choose: how sure it must be, and which regret counts as none."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.verdict.thresholds import ERROR_RATE, REGRET_SHARE


@dataclass(frozen=True, kw_only=True)
class Rules:
    """`error` bounds the chance of a wrong verdict. Exactly one of the two limits is given.

    `loss` is a share of the best loss, e.g. 0.01. `octaves` is the cost of so many octaves from a shape's own optimum.
    """

    error: float = ERROR_RATE
    loss: float | None = REGRET_SHARE
    octaves: float | None = None


DEFAULT_RULES = Rules()
