"""Numbers of a check that are shown at every scale: shares and entropies, which are no powers of it, and some sizes.

Nothing is predicted of them. This module knows no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hpxfer.coordinates.measure import Observation, Slope, slope_without_zeros
from hpxfer.host.output import aligned, json_ready

Kind = Literal["share", "size"]  # a size may be a power of the scale, and has a slope


@dataclass(frozen=True, kw_only=True)
class ByScale:
    """A number at every scale after `step` updates.

    `values` are means over the seeds that have the number, and NaN where none has it. A size is shown as an RMS, and
    has a slope of log size on log scale with its interval, unless it is not finite somewhere.
    """

    measure: str
    role: str
    layer: int | None  # a block, from 0. None is outside the blocks, or over all blocks
    step: int
    kind: Kind
    scales: tuple[float, ...]
    values: tuple[float, ...]
    slope: float | None = None
    low: float | None = None
    high: float | None = None
    dropped: tuple[float, ...] = ()  # scales at which it is exactly zero; the slope is that of the others

    def at(self, scale: float) -> float | None:
        """Return the value at a scale. It is None where the measure does not exist."""
        return self.values[self.scales.index(scale)] if scale in self.scales else None


def by_scale(observations: Iterable[Observation], kinds: Mapping[str, Kind]) -> tuple[ByScale, ...]:
    """Return the measures, which `kinds` names, over the scales that have them, in the order of the observations."""
    groups: dict[tuple[str, str, int | None, int], list[Observation]] = {}
    for seen in observations:
        groups.setdefault((seen.quantity, seen.role, seen.layer, seen.step), []).append(seen)
    return tuple(_by_scale(group, kinds[measure]) for (measure, *_), group in groups.items())


def over_blocks(observations: Iterable[Observation], kinds: Mapping[str, Kind]) -> list[Observation]:
    """Return the mean over the blocks of every share, and the RMS of every size, as observations of layer None."""
    groups: dict[tuple[str, str, int, float], list[Observation]] = {}
    for seen in observations:
        groups.setdefault((seen.quantity, seen.role, seen.step, seen.scale), []).append(seen)
    out = []
    for (measure, *_), group in groups.items():
        values = np.array([seen.values for seen in group])
        joined = np.sqrt(np.mean(values**2, 0)) if kinds[measure] == "size" else np.mean(values, 0)
        out.append(replace(group[0], layer=None, values=tuple(joined.tolist())))
    return out


def as_data(measures: Sequence[ByScale]) -> list[dict[str, Any]]:
    """Return the measures as JSON-ready data, one entry per measure and block: `values[i][j]` is at step i, scale j.

    It is None where a measure does not exist, such as the margin of a router all of whose experts are active.
    """
    scales = _scales(measures)
    groups: dict[tuple[str, str, int | None], list[ByScale]] = {}
    for found in measures:
        groups.setdefault((found.measure, found.role, found.layer), []).append(found)
    out = []
    for (measure, role, layer), group in groups.items():
        entry: dict[str, Any] = {"measure": measure, "role": role, "layer": layer, "kind": group[0].kind}
        entry |= {"steps": [found.step for found in group], "scales": scales}
        entry["values"] = [[found.at(scale) for scale in scales] for found in group]
        if group[0].kind == "size":
            entry["slopes"] = [[found.slope, found.low, found.high] for found in group]
        out.append(json_ready(entry))
    return out


def _scales(measures: Iterable[ByScale]) -> tuple[float, ...]:
    """Return the scales at which any measure exists, ascending."""
    return tuple(sorted({scale for found in measures for scale in found.scales}))


def as_text(measures: Sequence[ByScale], scale_name: str) -> list[str]:
    """Return the measures over all blocks at their first and last step as aligned lines, or nothing."""
    groups: dict[tuple[str, str], list[ByScale]] = {}
    for found in measures:
        if found.layer is None:
            groups.setdefault((found.role, found.measure), []).append(found)
    if not groups:
        return []
    scales = _scales(measures)
    head = ("role", "measure", "step", *(f"{scale:g}" for scale in scales), "slope", "95% interval")
    roles = list(dict.fromkeys(role for role, _ in groups))
    ordered = sorted(groups.values(), key=lambda group: roles.index(group[0].role))
    kept = [group for group in ordered if not _is_repeated(group, groups)]
    shown = [found for group in kept for found in dict.fromkeys((group[0], group[-1]))]
    return [
        f"routers and the probe, at each {scale_name} (means over seeds and blocks; sizes: RMS, with a slope)",
        *aligned([head, *(_row(found, scales) for found in shown)]),
    ]


def _is_repeated(group: Sequence[ByScale], groups: Mapping[tuple[str, str], Sequence[ByScale]]) -> bool:
    """Return whether a measure repeats another one, as the two entropies do where all experts are active."""
    other = groups.get((group[0].role, "entropy_of_all"), ())
    of_both = [[(found.step, found.scales, found.values) for found in each] for each in (group, other)]
    return group[0].measure == "entropy_of_active" and of_both[0] == of_both[1]


def _row(found: ByScale, scales: Sequence[float]) -> tuple[str, ...]:
    slope, interval = "", ""
    if found.slope is not None and found.low is not None and found.high is not None:
        slope = f"{found.slope:+.2f}{without(found.dropped)}"
        interval = f"{found.low:+.2f} .. {found.high:+.2f}"
    values = ("" if (value := found.at(scale)) is None else f"{value:.4g}" for scale in scales)
    return (found.role, found.measure, str(found.step), *values, slope, interval)


def without(dropped: Sequence[float]) -> str:
    """Return what to say beside a slope of the scales that it leaves out, because they hold exact zeros."""
    return f" without {', '.join(f'{scale:g}' for scale in dropped)}" if dropped else ""


def _by_scale(group: Sequence[Observation], kind: Kind) -> ByScale:
    members = sorted(group, key=lambda seen: seen.scale)
    slope: Slope | None = None
    dropped: tuple[float, ...] = ()
    if kind == "size":
        slope, dropped = slope_without_zeros([seen.scale for seen in members], [seen.values for seen in members])
    first = members[0]
    return ByScale(
        measure=first.quantity,
        role=first.role,
        layer=first.layer,
        step=first.step,
        kind=kind,
        scales=tuple(seen.scale for seen in members),
        values=tuple(_over_seeds(seen.values, kind) for seen in members),
        slope=slope.value if slope else None,
        low=slope.low if slope else None,
        high=slope.high if slope else None,
        dropped=dropped,
    )


def _over_seeds(values: Sequence[float], kind: Kind) -> float:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    if kind == "size":
        return math.sqrt(math.fsum(value**2 for value in known) / len(known))
    return math.fsum(known) / len(known)
