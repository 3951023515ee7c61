"""Throughput: how fast a run goes, measured over its later half. It is steady enough for an ETA, and forgets a slow
start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Above this number of marks, every second one is dropped: the memory does not grow with the run.
MOST_MARKS = 256
# A rate over less time than this would change much with every report.
LEAST_S = 2.0


@dataclass(kw_only=True)
class Throughput:
    """An amount that grows over time. Call `add` as it grows, and `rate` at any moment."""

    total: float = 0.0
    _marks: list[tuple[float, float]] = field(default_factory=list)  # (seconds, total at that time)
    _spacing_s: float = 0.25

    def add(self, now: float, amount: float) -> None:
        """Add an amount that was done by `now`. The first call only starts the clock."""
        self.total += amount
        if not self._marks or now - self._marks[-1][0] >= self._spacing_s:
            self._marks.append((now, self.total))
            if len(self._marks) > MOST_MARKS:
                self._marks = self._marks[::2]
                self._spacing_s *= 2

    def rate(self, now: float) -> float | None:
        """Return the amount per second since the middle of the time so far, or None before LEAST_S have passed."""
        if not self._marks or now - self._marks[0][0] < LEAST_S:
            return None
        first = self._marks[0]
        middle = (first[0] + now) / 2
        since = next((mark for mark in reversed(self._marks) if mark[0] <= middle), first)
        if self.total <= since[1]:
            since = first  # nothing was added since the middle: use the whole time
        return (self.total - since[1]) / (now - since[0]) if self.total > since[1] else None
