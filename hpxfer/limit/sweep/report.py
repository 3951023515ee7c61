"""Against: what a comparison of finite networks with their limit found, as data, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from hpxfer.host import aligned, json_ready
from hpxfer.limit.network import Network
from hpxfer.limit.sweep.lines import Line
from hpxfer.limit.sweep.seen import SeedLimits
from hpxfer.limit.sweep.statistics import (
    ALPHA,
    MOST_UNSEEN,
    RESOLVED,
    SLOWEST,
    Deviations,
    Distance,
    Mean,
    Slope,
    Test,
    distances,
    mean_of,
    mean_slope,
    missed,
    network_slope,
)
from hpxfer.verdict import scale_text

Verdict = Literal["agrees", "disagrees", "undecided"]
MEANINGS = {"loss": "loss", "logit_variance": "variance of the router's logits"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantity:
    """One number per pass of the finite networks beside that of the limit."""

    name: str
    passes: tuple[int, ...]
    limit: np.ndarray  # [T], mean over the solved limits
    finite: np.ndarray  # [J, S, T]
    deviations: Deviations

    @cached_property
    def means(self) -> Mean:
        """The means over seeds of the deviations, [J, T]."""
        return mean_of(self.deviations.values, self.deviations)

    @cached_property
    def test(self) -> Test:
        return missed(self.deviations)

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = json_ready(
            {
                "passes": self.passes,
                "limit": self.limit.tolist(),
                "limit_error": self.deviations.error.tolist(),
                "finite": [
                    {
                        "size": size,
                        "mean": self.finite[j].mean(axis=0).tolist(),
                        "deviation": self.means.mean[j].tolist(),
                        "error": self.means.error[j].tolist(),
                        "z": self.means.z[j].tolist(),
                    }
                    for j, size in enumerate(self.deviations.sizes)
                ],
                "test": {
                    "p": self.test.p,
                    "p_of_pass": self.test.p_of_pass.tolist(),
                    "worst_pass": self.passes[self.test.worst],
                    "seen": self.test.seen,
                },
            }
        )
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Against:
    """The networks of one arm along one axis of a sweep beside the limit of their training."""

    sweep: str
    line: Line
    network: Network
    solved: SeedLimits
    updates: int
    quantities: tuple[Quantity, ...]  # the training loss first
    held_out: bool
    """Whether the last pass of the loss is that on held-out samples."""
    tolerance: float
    from_data: str
    """What the sweep's report says of the width to tune at."""
    left_out: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.line.parameterization} along {self.line.axis}"

    @cached_property
    def distances(self) -> tuple[Distance, ...]:
        return distances(self.loss.deviations, self.loss.limit, self.tolerance)

    @cached_property
    def network_slope(self) -> Slope | None:
        return network_slope(self.loss.deviations)

    @cached_property
    def mean_slope(self) -> Slope | None:
        return mean_slope(self.loss.deviations)

    @property
    def loss(self) -> Quantity:
        return self.quantities[0]

    @property
    def p(self) -> float:
        """The probability of deviations as sure as these without cause, over all quantities."""
        return min(1.0, len(self.quantities) * min(each.test.p for each in self.quantities))

    @property
    def verdict(self) -> Verdict:
        if self.p < ALPHA:
            return "disagrees"
        return "agrees" if self.loss.test.seen <= MOST_UNSEEN else "undecided"

    @property
    def is_trivial(self) -> bool:
        """Whether the loss falls by less than the tolerance, so that networks that learn nothing are within it."""
        return self.loss.deviations.scale < self.tolerance * self.loss.deviations.most

    @property
    def large_enough(self) -> float | None:
        """The smallest size from which on all sizes are surely within the tolerance; None if there is none, or if the
        tolerance is trivial.
        """
        if self.is_trivial:
            return None
        out = None
        for each in reversed(self.distances):
            if not each.within:
                break
            out = each.size
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON has it."""
        found: dict[str, Any] = json_ready(
            {
                "sweep": self.sweep,
                **{name: getattr(self.line, name) for name in ("axis", "parameterization", "hp", "value")},
                "network": asdict(self.network),
                "seeds": self.line.seeds,
                "limits": len(self.solved.limits),
                "exact": self.solved.is_exact,
                "updates": self.updates,
                "held_out": self.held_out,
                "verdict": self.verdict,
                "p": self.p,
                "tolerance": self.tolerance,
                "large_enough": self.large_enough,
                "from_data": self.from_data,
                "distances": [asdict(each) for each in self.distances],
                "network_slope": self.network_slope and asdict(self.network_slope),
                "mean_slope": self.mean_slope and asdict(self.mean_slope),
                "left_out": self.left_out,
                "cautions": self.solved.cautions,
            }
        )
        return {**found, "quantities": {each.name: each.to_dict() for each in self.quantities}}

    def sentence(self) -> str:
        """Return what follows, in one sentence or two."""
        arm, seen = self.name, self.loss.test.seen
        if self.verdict == "disagrees":
            worst = min(self.quantities, key=lambda each: each.test.p)
            at = worst.test.worst
            sizes = worst.deviations.sizes
            before, last = worst.means.mean[[sizes.index(worst.test.against_size), -1], at]
            return (
                f"{arm}: the networks do NOT approach the limit of their table: the "
                f"{MEANINGS[worst.name]} {self._after(worst, at)} is off by {before:+.3g} at width "
                f"{scale_text(worst.test.against_size)} and by {last:+.3g} at width {scale_text(sizes[-1])} "
                f"(z = {worst.means.z[-1, at]:+.1f}), which does not shrink as it must. Look for an initialization, "
                "an LR or a forward multiplier that is not what the table says."
            )
        start = f"{arm}: the networks approach the limit of their table"
        if self.verdict == "undecided":
            last = self.distances[-1]
            is_far = last.within is False and last.is_resolved
            why = "the widths are too small" if is_far else f"{len(self.line.seeds)} seeds are too few"
            start = f"{arm}: {why} to tell whether the networks approach the limit of their table"
        return f"{start} (an offset of {seen:.1%} of the fall of the loss would have been seen). {self._enough()}"

    def _enough(self) -> str:
        share, smallest = f"{self.tolerance:.0%}", self.distances[0].size
        enough = self.large_enough
        if self.is_trivial:
            return f"The loss falls by less than {share}, so that being within {share} says nothing: take more updates."
        if enough is None:
            last = self.distances[-1]
            known = "is not" if last.within is False else "is not seen to be"
            return f"Width {scale_text(last.size)}, the largest, {known} within {share} of the limit's loss."
        if enough == smallest:
            return f"Width {scale_text(enough)}, the smallest, is within {share} of the limit's loss: large enough."
        below = next(each for each in reversed(self.distances) if each.size < enough)
        why = "is further away" if below.within is False else "is left open by its seeds"
        return (
            f"Width {scale_text(enough)} is large enough: it is within {share} of the limit's loss, and width "
            f"{scale_text(below.size)} {why}."
        )

    def table(self) -> str:
        """Return the whole comparison as text."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.sentence()
        yield f"From its data the sweep's report says: {self.from_data}"
        yield ""
        limits = "one limit for all of them" if len(self.solved.limits) == 1 else f"{len(self.solved.limits)} limits"
        sampled = "exact" if self.solved.is_exact else "sampled"
        what = f"regime {self.network.regime}" if self.network.regime != "residual" else "residual network"
        yield (
            f"Limit: {what}, {self.network.parameterization} numbers, {self.line.hp} {self.line.value:g}, "
            f"{self.updates} updates; {sampled}; {len(self.line.seeds)} seeds with {limits}"
        )
        rows = [["width", "mean - limit", "noise", "one network", "largest |z|", f"within {self.tolerance:.0%}"]]
        for each in self.distances:
            rows.append(
                [
                    scale_text(each.size),
                    f"{each.mean:.2%}",
                    f"{each.noise:.2%}",
                    f"{each.network:.2%}",
                    f"{each.widest_z:.1f}",
                    {True: "yes", False: "no", None: "open"}[each.within],
                ]
            )
        yield from aligned(rows, right_from=0)
        yield "  (RMS over updates, as a share of the fall of the limit's loss)"
        yield f"one network: N^{_slope(self.network_slope)}, expected -0.5"
        if self.mean_slope is None:
            yield f"mean over seeds: no exponent, as not all sizes are {RESOLVED:g} times their noise away; expected -1"
        else:
            yield f"mean over seeds: N^{_slope(self.mean_slope)}, expected -1 near the limit"
        for quantity in self.quantities:
            at = quantity.test.worst
            yield (
                f"{MEANINGS[quantity.name]}: the widest is off by {quantity.means.mean[-1, at]:+.3g} +- "
                f"{quantity.means.error[-1, at]:.2g} {self._after(quantity, at)}; probability of such deviations, "
                f"if they shrink as N^-{SLOWEST:g} or faster: {quantity.test.p:.2g}"
            )
        yield from (f"left out: {each}" for each in self.left_out)

    def _after(self, quantity: Quantity, at: int) -> str:
        count = quantity.passes[at]
        is_held_out = self.held_out and count == self.updates
        return f"after {count} update{'' if count == 1 else 's'}" + (" on held-out samples" if is_held_out else "")


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparisons:
    """All arms of a sweep beside their limits."""

    sweep: str
    arms: tuple[Against, ...]

    @property
    def cautions(self) -> tuple[str, ...]:
        found = (f"{arm.name}: {each}" for arm in self.arms for each in arm.solved.cautions)
        return tuple(dict.fromkeys(found))

    def to_dict(self) -> dict[str, Any]:
        """Return the comparisons as JSON has them."""
        return {"sweep": self.sweep, "arms": [arm.to_dict() for arm in self.arms]}

    def table(self) -> str:
        """Return the comparisons as text."""
        return "\n\n".join(arm.table() for arm in self.arms)


def _slope(found: Slope | None) -> str:
    return "-" if found is None else f"{found.slope:.2f} ({found.low:.2f} to {found.high:.2f})"
