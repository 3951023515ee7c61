"""Predictions: what theory says of a model's features as it grows, beside the tables and in their symbols.

A claim holds for the architecture that it was derived for. Without one, a quantity has no prediction, which passes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.scaling.monomial import Monomial


@dataclass(frozen=True, kw_only=True)
class Claim:
    """size of (quantity, role) ~ monomial in the ratios to the base shape, at steps `first` to `last`.

    The monomial 0 claims an exact zero; None claims nothing, and `source` says why. Where a ratio in `still` moves,
    the claim is not made, for the reason in `otherwise`.
    """

    quantity: str
    role: str
    size: Monomial | None
    source: str  # paper and table, or the reason why there is no prediction
    first: int = 0
    last: int | None = None
    still: tuple[str, ...] = ()
    otherwise: str = ""
