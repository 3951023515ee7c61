"""SeedLimits: the limits that the networks of every seed approach, as one table of numbers per seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpxfer.limit.against.batches import Seen
from hpxfer.limit.given import Floats
from hpxfer.limit.outcome import Limit


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedLimits:
    """The limits of some seeds. Seeds that saw the same samples share one. Letters: S seeds, T passes."""

    limits: Sequence[tuple[Seen, Limit]]
    seeds: tuple[int, ...]

    def series(self, name: str, passes: Sequence[int]) -> Floats:
        """Return a number of SERIES at some passes, [S, T]."""
        rows = {seed: limit.series[name].mean for seen, limit in self.limits for seed in seen.seeds}
        return np.stack([rows[seed][list(passes)] for seed in self.seeds])

    def error(self, name: str, passes: Sequence[int]) -> Floats:
        """Return the standard error [T] of the mean over seeds, as if the draws of all limits were the same.

        An error of few draws may be small by chance at one pass, and errors grow with training. So each pass has the
        largest error up to it.
        """
        found = [limit.series[name].error for _, limit in self.limits]
        known = [each for each in found if each is not None]
        assert len(known) == len(found), "limits are solved with several seeds"
        largest: Floats = np.maximum.accumulate(np.max(known, axis=0))
        return largest[list(passes)]

    @property
    def error_seeds(self) -> int:
        """Over how many draws of the solver an error is estimated; 0 where all limits are exact."""
        return min(0 if limit.is_exact else limit.num_seeds for _, limit in self.limits)

    @property
    def is_exact(self) -> bool:
        """Whether nothing was sampled."""
        return all(limit.is_exact for _, limit in self.limits)

    @property
    def cautions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(caution for _, limit in self.limits for caution in limit.cautions))
