"""Losses: the one form in which the analysis holds what was measured.

A `LossGrid` holds one parameterization along one axis. Its rows are shapes (`ShapeLosses`), the cells of a row are HP
values (`SeedLosses`), and a cell holds one loss per seed. The estimators read the same losses as arrays. Their shape
letters: I shapes by scale, K HP values ascending, S seeds.
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
from numpy.typing import NDArray

from hpxfer.errors import HpxferError
from hpxfer.verdict.labels import shape_label
from hpxfer.verdict.thresholds import CLIFF_RATIO, MIN_POINTS

COLUMNS = ("axis", "scale_name", "scale", "shape", "is_base", "parameterization", "value", "seed", "loss", "status")
TRIAL = "trial_id"  # a further column, which results have and a line written by hand may lack
STATUSES = ("finished", "diverged", "stopped", "failed", "missing")
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
# Rounds of the two-way means of cells and seeds. Complete cells need one round; a hole is filled to 1e-9 in 40.
ROUNDS = 40


@dataclass(frozen=True, kw_only=True)
class SeedLosses:
    """The losses of one shape at one HP value, in nats: one per seed that has a result, +inf where it diverged."""

    value: float
    seeds: tuple[int, ...]
    losses: tuple[float, ...]
    num_missing: int  # seeds that failed or were not run
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

    def seed_losses(self, seed: int) -> list[float | None]:
        """Return the losses of one seed, one per cell; None where it has no result."""
        return [cell.by_seed.get(seed) for cell in self.cells]


@dataclass(frozen=True, kw_only=True, eq=False)
class LossGrid:
    """The losses of one parameterization along one axis, a row per shape. Rows may also come from several axes."""

    rows: tuple[ShapeLosses, ...]

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

    @cached_property
    def x_K(self) -> Floats:
        """log2 of the HP values."""
        return np.asarray(np.log2(np.array(self.values, dtype=float)))

    @cached_property
    def loss_IKS(self) -> Floats:
        """The losses in nats: NaN where there is no result or none was planned, +inf where a seed diverged."""
        at_value = {value: k for k, value in enumerate(self.values)}
        at_seed = {seed: s for s, seed in enumerate(sorted({seed for row in self.rows for seed in row.seeds}))}
        out = np.full((len(self.rows), len(at_value), len(at_seed)), np.nan)
        for i, row in enumerate(self.rows):
            for cell in row.cells:
                for seed, loss in zip(cell.seeds, cell.losses, strict=True):
                    out[i, at_value[cell.value], at_seed[seed]] = loss
        return out

    @cached_property
    def num_seeds_IK(self) -> NDArray[np.int64]:
        """The number of seeds with a result, diverged ones included."""
        return np.asarray(np.sum(~np.isnan(self.loss_IKS), axis=2))

    @cached_property
    def unstable_IK(self) -> Bools:
        """True where a seed diverged. The mean loss there is +inf, whatever the other seeds gave."""
        return np.asarray(np.isinf(self.loss_IKS).any(axis=2))

    @cached_property
    def diverges_IK(self) -> Bools:
        """True where at least half of the seeds diverged, so that the median is +inf."""
        num_diverged_IK = np.isinf(self.loss_IKS).sum(axis=2)
        return np.asarray((num_diverged_IK > 0) & (2 * num_diverged_IK >= self.num_seeds_IK))

    @cached_property
    def stable_IK(self) -> Bools:
        """True where there is a result and no seed diverged."""
        return np.asarray((self.num_seeds_IK > 0) & ~self.unstable_IK)

    @cached_property
    def _two_way(self) -> tuple[Floats, Floats]:
        """The means of cells and the effects of seeds (zero on average) whose sums fit a basin's losses best."""
        known_IKS = self.basin_IK[:, :, None] & ~np.isnan(self.loss_IKS)
        loss_IKS = np.where(known_IKS, self.loss_IKS, 0.0)
        per_cell_IK = np.maximum(known_IKS.sum(2), 1)
        per_seed_IS = np.maximum(known_IKS.sum(1), 1)
        mean_IK = loss_IKS.sum(2) / per_cell_IK
        effect_IS = np.zeros_like(loss_IKS[:, 0])
        whole = bool(np.all(known_IKS == known_IKS.any(2, keepdims=True) & known_IKS.any(1, keepdims=True)))
        for _ in range(1 if whole else ROUNDS):
            effect_IS = np.where(known_IKS, loss_IKS - mean_IK[:, :, None], 0.0).sum(1) / per_seed_IS
            has_IS = known_IKS.any(1)
            effect_IS -= np.where(has_IS, effect_IS.sum(1, keepdims=True) / np.maximum(has_IS.sum(1)[:, None], 1), 0.0)
            effect_IS = np.where(has_IS, effect_IS, 0.0)
            mean_IK = np.where(known_IKS, loss_IKS - effect_IS[:, None, :], 0.0).sum(2) / per_cell_IK
        return np.where(self.basin_IK, mean_IK, np.nan), effect_IS

    @property
    def mean_IK(self) -> Floats:
        """Mean losses of the cells of a basin, in nats; NaN elsewhere.

        Where a seed is missing, its effect on the mean is taken from its other cells.
        """
        return self._two_way[0]

    @cached_property
    def residual_IKS(self) -> Floats:
        """A seed's loss minus the mean of its cell and the effect of the seed, scaled to the variance of one seed.

        NaN where a cell has fewer than two seeds.
        """
        mean_IK, effect_IS = self._two_way
        seeds_IK1 = self.num_seeds_IK[:, :, None]
        grow = np.sqrt(seeds_IK1 / np.maximum(seeds_IK1 - 1, 1))
        residual_IKS: Floats = (self.loss_IKS - mean_IK[:, :, None] - effect_IS[:, None, :]) * grow
        return np.where(seeds_IK1 > 1, residual_IKS, np.nan)

    @cached_property
    def raw_IK(self) -> Floats:
        """Mean losses of the stable cells, in nats, over whichever seeds each has; NaN elsewhere."""
        sums_IK = np.where(self.stable_IK, np.nansum(self.loss_IKS, axis=2), np.nan)
        return np.asarray(sums_IK / np.maximum(self.num_seeds_IK, 1))

    @cached_property
    def lowest_I(self) -> NDArray[np.intp]:
        """The index of the stable cell with the lowest mean, per shape; 0 where no cell is stable."""
        return np.asarray(np.argmin(np.where(self.stable_IK, self.raw_IK, np.inf), axis=1))

    @cached_property
    def cliffs_IK(self) -> Bools:
        """True for stable cells whose loss is too high for a basin: training blew up, but ended with a number."""
        if self.x_K.size < MIN_POINTS:
            return np.zeros_like(self.stable_IK)
        rise_IK = self.raw_IK - np.take_along_axis(self.raw_IK, self.lowest_I[:, None], axis=1)
        distance_IK = np.abs(self.x_K - self.x_K[self.lowest_I][:, None])
        known_IK = self.stable_IK & (distance_IK > 0)
        if not known_IK.any():
            return known_IK
        # Next to the lowest cell, a rise is mostly noise: that distance counts as two steps.
        distance_IK = np.maximum(distance_IK, 2 * float(np.median(np.diff(self.x_K))))
        bend_IK = np.where(known_IK, rise_IK / distance_IK**2, 0.0)
        return np.asarray(bend_IK > CLIFF_RATIO * float(np.median(bend_IK[known_IK])))

    @cached_property
    def basin_IK(self) -> Bools:
        """True for the stable cells around the lowest one of a shape, up to an unstable cell or a cliff."""
        open_IK = self.unstable_IK | self.cliffs_IK
        out = np.zeros_like(self.stable_IK)
        for i, lowest in enumerate(self.lowest_I):
            below = np.flatnonzero(open_IK[i, :lowest])
            above = np.flatnonzero(open_IK[i, lowest:])
            start = below[-1] + 1 if below.size else 0
            stop = lowest + above[0] if above.size else self.x_K.size
            out[i, start:stop] = self.stable_IK[i, start:stop]
        return out


def loss_grids(line: pd.DataFrame) -> tuple[LossGrid, ...]:
    """Return the losses of a line, by axis and parameterization. The order of the frame's rows does not matter."""
    if absent := [name for name in COLUMNS if name not in line.columns]:
        raise HpxferError(f"line: must have the columns {', '.join(COLUMNS)}; missing: {', '.join(absent)}")
    if unknown := sorted(set(line["status"]) - set(STATUSES)):
        raise HpxferError(f"line: status must be one of {', '.join(STATUSES)}, got {unknown[0]!r}")
    rows_of: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    columns = [*COLUMNS, TRIAL] if TRIAL in line.columns else list(COLUMNS)
    for row in line[columns].to_dict("records"):
        key = (row["axis"], row["parameterization"], float(row["scale"]), row["shape"])
        rows_of[key].append({str(name): value for name, value in row.items()})
    groups = groupby(sorted(rows_of), key=lambda key: key[:2])
    return tuple(LossGrid(rows=tuple(_shape(rows_of[key]) for key in keys)) for _, keys in groups)


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
    seeds = tuple(sorted(loss_of))
    return SeedLosses(
        value=value,
        seeds=seeds,
        losses=tuple(loss_of[seed] for seed in seeds),
        num_missing=len(trials) - len(seeds),
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
