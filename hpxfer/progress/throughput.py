"""Throughput: how fast a run goes, over its later half. Steady enough for an ETA, and forgetful of a slow start."""

from __future__ import annotations

from dataclasses import dataclass, field

# More marks than these are thinned to half: the memory does not grow with the run.
MOST_MARKS = 256
# A rate over less time than this would jump with every report.
LEAST_S = 2.0


@dataclass(kw_only=True)
class Throughput:
    """Amounts of something counted up over time. `add` them as they come, `rate` them at any moment."""

    total: float = 0.0
    _marks: list[tuple[float, float]] = field(default_factory=list)  # (seconds, total by then)
    _spacing_s: float = 0.25

    def add(self, now: float, amount: float) -> None:
        """Count an amount that was done by `now`. The first one only starts the clock."""
        self.total += amount
        if not self._marks or now - self._marks[-1][0] >= self._spacing_s:
            self._marks.append((now, self.total))
            if len(self._marks) > MOST_MARKS:
                self._marks = self._marks[::2]
                self._spacing_s *= 2

    def rate(self, now: float) -> float | None:
        """Return the amount a second since the middle of the time counted so far; None before LEAST_S have passed."""
        if not self._marks or now - self._marks[0][0] < LEAST_S:
            return None
        first = self._marks[0]
        middle = (first[0] + now) / 2
        since = next((mark for mark in reversed(self._marks) if mark[0] <= middle), first)
        if self.total <= since[1]:
            since = first  # nothing has come since the middle: the whole time is what there is
        return (self.total - since[1]) / (now - since[0]) if self.total > since[1] else None
