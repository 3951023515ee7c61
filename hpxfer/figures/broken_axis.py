"""A log axis of losses with a break above zero, as losses given up are zero or differ by orders of magnitude."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.axes import Axes

from hpxfer.figures.style import INK, SMALL

# Losses at which the log axis has a tick.
TICKS = tuple(digit * 10.0**power for power in range(-7, 3) for digit in (1, 2, 5))
# The log axis starts no lower than this fraction of its top. What lies below, zero included, is under the break.
LEAST_SHARE = 1e-3
GAP = 0.22  # from the start of the log axis down to zero, as a fraction of its height
LEAST_TOP = 0.01  # where nothing above zero is known
STRIP = 0.12  # the height of the strip for what diverged, as a fraction of the log part
NONE = "none\nmeasured"


@dataclass(frozen=True, kw_only=True)
class BrokenAxis:
    """A y-axis that is logarithmic from `low` to `high`. Below it, after a break, one height stands for zero."""

    low: float
    high: float

    @property
    def height(self) -> float:
        """The height of the log part, in decades."""
        return math.log10(self.high / self.low)

    @property
    def zero(self) -> float:
        """Where zero is drawn."""
        return math.log10(self.low) - GAP * self.height

    @property
    def break_at(self) -> float:
        """The middle of the break."""
        return math.log10(self.low) - 0.45 * GAP * self.height

    @property
    def strip(self) -> float:
        """The middle of the strip for what diverged."""
        return math.log10(self.high) + STRIP * self.height / 2

    def at(self, lost: float) -> float:
        """Return where a loss is drawn. All that lies below the log part is drawn at zero."""
        return math.log10(lost) if lost >= self.low else self.zero


def broken_axis(losses: Iterable[float | None]) -> BrokenAxis:
    """Return an axis that shows every loss above zero, down to LEAST_SHARE of the largest. None is not known."""
    positive = [lost for lost in losses if lost is not None and 0 < lost < math.inf] or [LEAST_TOP]
    high = 1.3 * max(positive)
    return BrokenAxis(low=max(0.8 * min(positive), LEAST_SHARE * high), high=high)


def draw_broken_axis(axes: Axes, broken: BrokenAxis, unit: str, *, strip: bool) -> None:
    """Set the y-axis, mark its break, and add a strip for what diverged."""
    top, lane = math.log10(broken.high), STRIP * broken.height
    bottom = broken.zero - 0.06 * broken.height
    axes.set_ylim(bottom, top + (lane if strip else 0.0))
    ticks = [tick for tick in TICKS if broken.low <= tick <= broken.high] or [broken.low, broken.high]
    places = [broken.zero, *map(math.log10, ticks)]
    axes.set_yticks(places, [NONE, *(f"{tick:.2g}" for tick in ticks)])
    axes.set_ylabel(f"loss given up ({unit}, log scale)")
    half = 0.018 * broken.height  # of the gap in the spine
    axes.spines["left"].set_bounds(broken.break_at + half, axes.get_ylim()[1])
    on_spine = {"transform": axes.get_yaxis_transform(), "clip_on": False, "color": INK}
    axes.plot([0, 0], [bottom, broken.break_at - half], linewidth=0.8, **on_spine)  # type: ignore[arg-type]
    for middle in (broken.break_at - half, broken.break_at + half):
        axes.plot([-0.012, 0.012], [middle - half, middle + half], linewidth=1.1, zorder=5, **on_spine)  # type: ignore[arg-type]
    axes.axhline(broken.break_at, color=INK, alpha=0.25, linewidth=0.8, linestyle=(0, (1, 3)))
    if strip:
        axes.axhspan(top, top + lane, color=INK, alpha=0.06, linewidth=0)
        offset = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": SMALL}
        axes.annotate("diverged", (axes.get_xlim()[0], broken.strip), **offset)  # type: ignore[arg-type]
