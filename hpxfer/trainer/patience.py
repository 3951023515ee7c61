"""Patience: how long a trainer may be silent. Pure: the caller gives the time."""

from __future__ import annotations

from collections import deque
from statistics import median

from hpxfer.trainer.job import Timeouts

# Without `silence_s`: a trainer hangs after so many of its own gaps between lines, and never before so many seconds.
_GAPS, _LEAST_S = 20.0, 900.0
_REMEMBERED = 101


class Patience:
    """Says when a trainer counts as hanging. All times are in seconds of one monotonic clock."""

    def __init__(self, timeouts: Timeouts, now: float, *, speaks: bool = True) -> None:
        self._timeouts, self._speaks = timeouts, speaks
        self._started, self._last = now, None if speaks else now
        self._gaps: deque[float] = deque(maxlen=_REMEMBERED)

    def heard(self, now: float) -> None:
        """Note that a line came."""
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now

    def why_over(self, now: float) -> str | None:
        """Return why the trainer counts as hanging, or None."""
        limits = self._timeouts
        if limits.wall_s is not None and now - self._started > limits.wall_s:
            return f"it ran longer than wall_s, {limits.wall_s:g} s"
        if not self._speaks:
            return None
        if self._last is None:
            late = limits.start_s is not None and now - self._started > limits.start_s
            return f"it wrote no line within start_s, {limits.start_s:g} s" if late else None
        if now - self._last > self.silence_s:
            return f"it wrote no line for silence_s, {self.silence_s:g} s"
        return None

    @property
    def silence_s(self) -> float:
        """The longest silence that is no hang."""
        if self._timeouts.silence_s is not None:
            return self._timeouts.silence_s
        return max(_LEAST_S, _GAPS * median(self._gaps)) if self._gaps else _LEAST_S
