"""Compare: whether a point beats another over the same seeds by more than the noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpxfer.search.rounds import SeedLosses


@dataclass(frozen=True, kw_only=True)
class Gain:
    """By how much a point's loss lies below another's, in nats: the mean over the seeds and its standard error."""

    mean: float  # +inf if only the other point diverged, -inf if only this one did, NaN if both
    error: float  # NaN with one seed, or if one diverged

    def beats(self, noise: float) -> bool:
        """Return whether the gain exceeds `noise` standard errors. With one seed its sign decides."""
        if not math.isfinite(self.mean):
            return self.mean == math.inf
        return self.mean > 0 and (math.isnan(self.error) or self.mean > noise * self.error)


def gain(old: SeedLosses, new: SeedLosses) -> Gain:
    """Return the gain of `new` over `old`, seed by seed."""
    old_is_lost, new_is_lost = (not all(map(math.isfinite, losses)) for losses in (old, new))
    if old_is_lost or new_is_lost:
        both = old_is_lost and new_is_lost
        return Gain(mean=math.nan if both else math.inf if old_is_lost else -math.inf, error=math.nan)
    apart = [before - after for before, after in zip(old, new, strict=True)]
    error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
    return Gain(mean=math.fsum(apart) / len(apart), error=error)


def pooled(found: Sequence[Gain], beside: Sequence[Gain]) -> list[Gain]:
    """Return the gains. An error is raised to the median error of the gains `beside` them.

    The spread of two or three seeds is a bad estimate: by luck it may be nearly zero.
    """
    known = [neighbor.error for neighbor in beside if not math.isnan(neighbor.error)]
    least = statistics.median(known) if known else 0.0
    return [each if math.isnan(each.error) else replace(each, error=max(each.error, least)) for each in found]
