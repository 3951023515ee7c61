"""Losses: the one form in which the analysis holds what was measured.

A `LossGrid` holds one parameterization along one axis. Its rows are shapes (`ShapeLosses`), the cells of a row are HP
values (`SeedLosses`), and a cell holds one loss per seed. `measured` holds the losses of one row as an array.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from hpxfer.errors import HpxferError, shown
from hpxfer.host import NATS, JudgedLoss, shape_label

COLUMNS = ("axis", "scale_name", "scale", "shape", "is_base", "parameterization", "value", "seed", "loss", "status")
TRIAL = "trial_id"  # a further column, which results have and a line written by hand may lack
STATUSES = ("finished", "diverged", "stopped", "failed", "missing")


@dataclass(frozen=True, kw_only=True)
class SeedLosses:
    """The losses of one shape at one HP value: one per seed that has a result, +inf where it diverged."""

    value: float
    seeds: tuple[int, ...]
    losses: tuple[float, ...]
    num_missing: int  # seeds without a loss: they failed, were not run, or are among `num_lost`
    num_lost: int = 0  # seeds that finished without a loss, and are not run again
    trials: tuple[tuple[int, str], ...] = ()  # (seed, id) of every planned trial; empty if the line names none

    @property
    def log2(self) -> float:
        return math.log2(self.value)

    @property
    def finite(self) -> tuple[float, ...]:
        """The losses of the seeds that did not diverge."""
        return tuple(loss for loss in self.losses if math.isfinite(loss))

    @property
    def median(self) -> float | None:
        """The median over seeds. It is +inf if at least half of the seeds diverged, and None without a result."""
        return float(np.median(self.losses)) if self.losses else None

    @property
    def mean(self) -> float | None:
        """The mean over seeds. It is None without a result, and if a seed diverged."""
        return float(np.mean(self.losses)) if self.losses and len(self.finite) == len(self.losses) else None

    @property
    def censored(self) -> bool:
        """Whether the median is +inf: nothing is known of the loss but that it is large."""
        return self.median == math.inf

    @property
    def by_seed(self) -> dict[int, float]:
        """The loss of each seed that has a result."""
        return dict(zip(self.seeds, self.losses, strict=True))

    @property
    def trial_of(self) -> dict[int, str]:
        """The id of the trial of each seed that has a result."""
        return {seed: trial for seed, trial in self.trials if seed in self.seeds}


@dataclass(frozen=True, kw_only=True)
class ShapeLosses:
    """The losses of one shape of one parameterization. `cells` ascend and hold every planned HP value."""

    axis: str
    scale_name: str
    scale: float
    shape: str
    is_base: bool
    parameterization: str
    cells: tuple[SeedLosses, ...]
    off_axis: tuple[SeedLosses, ...] = ()  # values that a log2 axis cannot show, e.g. weight decay 0

    @property
    def name(self) -> str:
        """The shape's name within its axis, e.g. `width 64`."""
        return shape_label(self.scale_name, self.scale)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that have a result at any HP value."""
        return tuple(sorted({seed for cell in self.cells for seed in cell.seeds}))

    @property
    def num_diverged(self) -> int:
        """The number of trials that diverged."""
        return sum(len(cell.losses) - len(cell.finite) for cell in self.cells)

    @property
    def num_missing(self) -> int:
        """The number of trials that failed or were not run."""
        return sum(cell.num_missing for cell in self.cells)

    @property
    def num_trials(self) -> int:
        return sum(len(cell.losses) + cell.num_missing for cell in self.cells)

    def cell(self, value: float | None) -> SeedLosses | None:
        """Return the cell at exactly this HP value; None if there is none."""
        return next((cell for cell in self.cells if cell.value == value), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class LossGrid:
    """The losses of one parameterization along one axis, a row per shape. Rows may also come from several axes."""

    rows: tuple[ShapeLosses, ...]
    judged: JudgedLoss = NATS

    @property
    def axis(self) -> str:
        return self.rows[0].axis

    @property
    def scale_name(self) -> str:
        return self.rows[0].scale_name

    @property
    def parameterization(self) -> str:
        return self.rows[0].parameterization

    @property
    def key(self) -> tuple[str, str]:
        """Its axis and parameterization."""
        return self.axis, self.parameterization

    @cached_property
    def values(self) -> tuple[float, ...]:
        """Every HP value that is planned at any shape, ascending."""
        return tuple(sorted({cell.value for row in self.rows for cell in row.cells}))


def loss_grids(line: pd.DataFrame, judged: JudgedLoss = NATS) -> tuple[LossGrid, ...]:
    """Return the losses of a line, by axis and parameterization. The order of the frame's rows does not matter."""
    if absent := [name for name in COLUMNS if name not in line.columns]:
        raise HpxferError(f"line: must have the columns {', '.join(COLUMNS)}; missing: {', '.join(absent)}")
    if unknown := sorted(set(line["status"]) - set(STATUSES)):
        raise HpxferError(f"line: status must be one of {', '.join(STATUSES)}, got {shown(unknown[0])}")
    rows_of: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    columns = [*COLUMNS, TRIAL] if TRIAL in line.columns else list(COLUMNS)
    for row in line[columns].to_dict("records"):
        key = (row["axis"], row["parameterization"], float(row["scale"]), row["shape"])
        rows_of[key].append({str(name): value for name, value in row.items()})
    groups = groupby(sorted(rows_of), key=lambda key: key[:2])
    return tuple(LossGrid(rows=tuple(_shape(rows_of[key]) for key in keys), judged=judged) for _, keys in groups)


def _shape(trials: list[dict[str, Any]]) -> ShapeLosses:
    by_value: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for trial in trials:
        by_value[float(trial["value"])].append(trial)
    cells = [_cell(value, by_value[value]) for value in sorted(by_value)]
    first = trials[0]
    return ShapeLosses(
        axis=str(first["axis"]),
        scale_name=str(first["scale_name"]),
        scale=float(first["scale"]),
        shape=str(first["shape"]),
        is_base=bool(first["is_base"]),
        parameterization=str(first["parameterization"]),
        cells=tuple(cell for cell in cells if cell.value > 0),
        off_axis=tuple(cell for cell in cells if cell.value <= 0),
    )


def _cell(value: float, trials: list[dict[str, Any]]) -> SeedLosses:
    loss_of = {int(trial["seed"]): loss for trial in trials if (loss := _loss(trial)) is not None}
    num_finished = sum(trial["status"] in ("finished", "diverged") for trial in trials)
    seeds = tuple(sorted(loss_of))
    return SeedLosses(
        value=value,
        seeds=seeds,
        losses=tuple(loss_of[seed] for seed in seeds),
        num_missing=len(trials) - len(seeds),
        num_lost=num_finished - len(seeds),
        trials=tuple(sorted((int(trial["seed"]), str(trial[TRIAL])) for trial in trials if TRIAL in trial)),
    )


def _loss(trial: Mapping[str, Any]) -> float | None:
    """Return a trial's loss, +inf if it diverged, None without a result. Divergence is a result; failure is none."""
    match trial["status"]:
        case "diverged":
            return math.inf
        case "finished":
            loss = float(trial["loss"])
            return None if math.isnan(loss) else loss
        case _:
            return None
