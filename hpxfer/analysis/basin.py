"""Basins: loss against one HP at one shape, read from the rows of a line."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpxfer.analysis.text import scale_text
from hpxfer.errors import HpxferError

COLUMNS = ("axis", "scale_name", "scale", "shape", "is_base", "parameterization", "value", "seed", "loss", "status")
STATUSES = ("finished", "diverged", "stopped", "failed", "missing")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One HP value at one shape. `losses` are in nats, one a seed that has a result; a diverged seed is +inf."""

    value: float
    seeds: tuple[int, ...]
    losses: tuple[float, ...]
    num_missing: int  # seeds that failed or were not run

    @property
    def log2(self) -> float:
        return math.log2(self.value)

    @property
    def finite(self) -> tuple[float, ...]:
        """The losses of the seeds that did not diverge."""
        return tuple(loss for loss in self.losses if math.isfinite(loss))

    @property
    def median(self) -> float | None:
        """The median over seeds: +inf is a censored value (at least half of the seeds diverged), None is no result."""
        return float(np.median(self.losses)) if self.losses else None

    @property
    def censored(self) -> bool:
        return self.median == math.inf


@dataclass(frozen=True, kw_only=True)
class Basin:
    """Loss against HP for one shape of one parameterization. `points` ascend and hold every planned value."""

    axis: str
    scale_name: str
    scale: float
    shape: str
    is_base: bool
    parameterization: str
    points: tuple[Point, ...]
    off_axis: tuple[Point, ...]  # values that a log2 axis has no place for, e.g. weight decay 0

    @property
    def name(self) -> str:
        """The shape as reasons speak of it, e.g. `width 64`."""
        return f"{self.scale_name} {scale_text(self.scale)}"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds with a result anywhere on the axis."""
        return tuple(sorted({seed for point in self.points for seed in point.seeds}))

    @property
    def num_diverged(self) -> int:
        """Trials that diverged."""
        return sum(len(point.losses) - len(point.finite) for point in self.points)

    @property
    def num_missing(self) -> int:
        """Trials that failed or were not run."""
        return sum(point.num_missing for point in self.points)

    @property
    def num_trials(self) -> int:
        return sum(len(point.losses) + point.num_missing for point in self.points)

    def point(self, value: float | None) -> Point | None:
        """Return the point at exactly this HP value, or None."""
        return next((one for one in self.points if one.value == value), None)

    def seed_losses(self, seed: int) -> list[float | None]:
        """Return one seed's loss at every point; None where it has no result."""
        return [dict(zip(one.seeds, one.losses, strict=True)).get(seed) for one in self.points]


def basins(line: pd.DataFrame) -> tuple[Basin, ...]:
    """Return every basin of a line, ordered by axis, parameterization (the order of rows plays no part) and scale."""
    if absent := [name for name in COLUMNS if name not in line.columns]:
        raise HpxferError(f"line: must have the columns {', '.join(COLUMNS)}; missing: {', '.join(absent)}")
    if unknown := sorted(set(line["status"]) - set(STATUSES)):
        raise HpxferError(f"line: status must be one of {', '.join(STATUSES)}, got {unknown[0]!r}")
    rows_of: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in line[list(COLUMNS)].to_dict("records"):
        key = (row["axis"], row["parameterization"], float(row["scale"]), row["shape"])
        rows_of[key].append({str(name): value for name, value in row.items()})
    return tuple(_basin(rows_of[key]) for key in sorted(rows_of))


def _basin(rows: list[dict[str, Any]]) -> Basin:
    by_value: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_value[float(row["value"])].append(row)
    points = [_point(value, by_value[value]) for value in sorted(by_value)]
    first = rows[0]
    return Basin(
        axis=str(first["axis"]),
        scale_name=str(first["scale_name"]),
        scale=float(first["scale"]),
        shape=str(first["shape"]),
        is_base=bool(first["is_base"]),
        parameterization=str(first["parameterization"]),
        points=tuple(one for one in points if one.value > 0),
        off_axis=tuple(one for one in points if one.value <= 0),
    )


def _point(value: float, rows: list[dict[str, Any]]) -> Point:
    loss_of = {int(row["seed"]): loss for row in rows if (loss := _loss(row)) is not None}
    seeds = tuple(sorted(loss_of))
    return Point(
        value=value,
        seeds=seeds,
        losses=tuple(loss_of[seed] for seed in seeds),
        num_missing=len(rows) - len(seeds),
    )


def _loss(row: dict[str, Any]) -> float | None:
    """Return a trial's loss, +inf if it diverged, None if there is no result. Divergence is data; failure is not."""
    match row["status"]:
        case "diverged":
            return math.inf
        case "finished":
            loss = float(row["loss"])
            return None if math.isnan(loss) else loss
        case _:
            return None
