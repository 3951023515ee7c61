"""Odd runs: those that are no draw of the noise of their cell, and what counts instead.

- Dead runs. Beyond a wall training ends at some number, often near that of guessing, with a scatter of its own. All
  cells from there to the end of the grid count as diverged: they say that the optimum lies below, and no more.
- Runs that stand apart. Of three or more seeds the majority counts, whichever way the others lie: a mislabelled run, a
  longer one or one on another split may end too low as well as too high. They are left out and named.
- Seeds that disagree without a majority, such as two of them. Any may be right, so nothing is left out. The mean of the
  cell is then known to half their range only (`Measured.doubt_K`). Far up a wall seeds differ by more than near the
  optimum, and a cell is known as well as its own seeds say.

The typical noise that all of this is measured by comes from the lowest cells of each shape, and few odd runs change it.

Array letters: K HP values ascending, S seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from hpxfer.intervals import Bools, Floats
from hpxfer.verdict.findings import Odd, OddRun
from hpxfer.verdict.loss_grid import ShapeLosses
from hpxfer.verdict.measured import LOG_CHANCES, TINY, Measured, balanced
from hpxfer.verdict.thresholds import (
    APART_NOISES,
    APART_SHARE,
    DEAD_DEPTH,
    DEAD_FLAT,
    DEAD_NOISES,
    DEAD_RISE,
    DEAD_SHARE,
    WALL_RATIO,
)

# The median of the range of so many normal numbers, in standard deviations. With more seeds, that of five is close.
RANGES = {2: 0.954, 3: 1.588, 4: 1.978, 5: 2.257}
# The mean distance of so many normal numbers from their median, without that of the median itself. The same.
DISTANCES = {2: 0.564, 3: 0.846, 4: 0.663, 5: 0.807, 6: 0.698}
CLIPPED = 5.0  # a distance so many times the median one is not one of noise
LOW_CELLS = 3  # the fewest cells that tell the noise of a shape
FEW_CELLS = 2.5  # over the root of their number: by what share the typical noise of so many cells may be too low
LEAST = 1e-6  # nats: the noise where all seeds agree to the last digit
FEWEST = 3  # seeds that have a majority


def measure(rows: Iterable[ShapeLosses]) -> tuple[Measured, ...]:
    """Return what was measured at each shape, without odd runs. What is odd rests on the noise of all shapes."""
    plain = [_plain(row) for row in rows]
    alive = [_with_dead(measured, noise) for measured, noise in zip(plain, _typical_noise(plain), strict=True)]
    found = [_majority(measured, noise) for measured, noise in zip(alive, _typical_noise(alive), strict=True)]
    if all(measured.unbalanced is None for measured in found):
        return tuple(found)
    log_R = LOG_CHANCES + np.sum([_log_levels(measured) for measured in found], axis=0)
    return tuple(replace(measured, log_levels_R=log_R) for measured in found)


def _log_levels(measured: Measured) -> Floats:
    """Return how likely the losses of a shape make each variance of the levels of seeds."""
    loss_CS = measured.loss_KS[measured.agreeing_K]
    if not loss_CS.size or not measured.linked_S.any():
        return np.zeros(LOG_CHANCES.size)
    return balanced(loss_CS - np.nanmin(loss_CS), measured.linked_S)[2]


def odd_runs(measured: Measured) -> tuple[OddRun, ...]:
    """Return the odd runs of a shape, by HP value and seed.

    Far above the lowest cell seeds differ by more. A cell in doubt is named only if its seeds differ by a share of its
    rise.
    """
    row, out = measured.row, []
    leveled_KS = _leveled(replace(measured, loss_KS=np.where(measured.dead_KS, np.nan, measured.given_KS)))
    best = math.nan if measured.lowest is None else float(measured.mean_K[measured.lowest])
    known_KS = np.where(np.isfinite(measured.loss_KS), leveled_KS, np.nan)
    spread_K = np.array([np.ptp(cell[~np.isnan(cell)]) if (~np.isnan(cell)).any() else 0.0 for cell in known_KS])
    in_doubt_K = (measured.doubt_K > 0) & (spread_K > APART_SHARE * (np.nan_to_num(measured.mean_K) - best))
    kinds: tuple[tuple[Odd, Bools], ...] = (
        ("apart", measured.apart_KS),
        ("disagrees", in_doubt_K[:, None] & np.isfinite(measured.loss_KS)),
        ("dead", measured.dead_KS),
    )
    for why, odd_KS in kinds:
        for k, s in np.argwhere(odd_KS).tolist():
            cell, seed = row.cells[k], row.seeds[s]
            loss = float(measured.given_KS[k, s])
            away = loss - best if why == "dead" else float(leveled_KS[k, s]) - _median(np.delete(leveled_KS[k], s))
            out.append(
                OddRun(
                    why=why,
                    shape=row.name,
                    value=cell.value,
                    seed=seed,
                    run=cell.trial_of.get(seed),
                    loss=loss,
                    away_nats=away,
                )
            )
    return tuple(sorted(out, key=lambda run: (run.value, run.seed)))


def _plain(row: ShapeLosses) -> Measured:
    seeds = row.seeds
    loss_KS = np.full((len(row.cells), len(seeds)), np.nan)
    for k, cell in enumerate(row.cells):
        for seed, loss in zip(cell.seeds, cell.losses, strict=True):
            loss_KS[k, seeds.index(seed)] = loss
    x_K = np.log2(np.array([cell.value for cell in row.cells], dtype=float))
    return Measured(row=row, x_K=np.asarray(x_K), loss_KS=loss_KS, given_KS=loss_KS, doubt_K=np.zeros(len(x_K)))


def _leveled(measured: Measured) -> Floats:
    """Return the losses of stable cells without the level that a seed adds to all of them; NaN elsewhere."""
    stable_KS = np.where(measured.stable_K[:, None], measured.loss_KS, np.nan)
    levels = [_median(column) for column in (stable_KS - np.array([[_median(cell)] for cell in stable_KS])).T]
    return np.asarray(stable_KS - np.where(measured.linked_S, np.nan_to_num(np.array(levels)), 0.0))


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else math.nan


def _scatter(leveled_KS: Floats) -> Floats:
    """Return the noise that the range of each cell shows, NaN with fewer than two seeds."""
    known = [cell[~np.isnan(cell)] for cell in leveled_KS]
    return np.array([np.ptp(cell) / RANGES[min(cell.size, max(RANGES))] if cell.size > 1 else np.nan for cell in known])


def _typical_noise(rows: Sequence[Measured]) -> list[float | None]:
    """Return the noise of the seeds of each shape, at its lowest cells; None if no shape has two seeds.

    A shape that is noisier than the pool of all shapes keeps its own noise, so that none of its runs looks odd.
    """
    found = [_distances(measured) for measured in rows]
    every = np.concatenate([away for away, _ in found]) if found else np.zeros(0)
    if not every.size:
        return [None] * len(rows)
    pool = max(_clipped_mean(every), LEAST)
    margin = 1 + FEW_CELLS / math.sqrt(sum(num for _, num in found))
    return [margin * (pool if num < LOW_CELLS else max(pool, _clipped_mean(away))) for away, num in found]


def _distances(measured: Measured) -> tuple[Floats, int]:
    """Return the distances of runs from the median of their cell, scaled to the noise, and how many cells they are of.

    Two thirds of the cells count, the lowest ones. One odd run of three is one distance of two.
    """
    cells = [cell[~np.isnan(cell)] for cell in _leveled(measured)]
    known = sorted((cell for cell in cells if cell.size > 1), key=np.median)
    lowest = known[: max(LOW_CELLS, math.ceil(2 * len(known) / 3))]
    found = []
    for cell in lowest:
        away = np.sort(np.abs(cell - np.median(cell)))[cell.size % 2 :]
        found.append(away / DISTANCES[min(cell.size, max(DISTANCES))])
    return np.concatenate(found) if found else np.zeros(0), len(lowest)


def _clipped_mean(away: Floats) -> float:
    """Return the mean of distances without those that few odd runs have."""
    return float(away[away <= CLIPPED * np.median(away)].mean())


def _with_dead(measured: Measured, noise: float | None) -> Measured:
    """Return the losses with +inf for the runs that died, at the HPs beyond the lowest cell on either side."""
    if measured.lowest is None:
        return measured
    dead_KS = _dead_side(measured, noise, 1) | _dead_side(measured, noise, -1)
    return replace(measured, loss_KS=np.where(dead_KS, np.inf, measured.loss_KS)) if dead_KS.any() else measured


def _dead_side(measured: Measured, noise: float | None, outward: int) -> Bools:
    """Return which runs died above the lowest cell (`outward` is 1) or below it (-1), (K, S)."""
    finite_KS = np.where(np.isfinite(measured.loss_KS), measured.loss_KS, np.nan)
    leveled_KS = _leveled(measured)
    finite_KS = np.where(np.isnan(leveled_KS), finite_KS, leveled_KS)
    middle_K = np.array([_median(cell) for cell in finite_KS])
    lowest = int(np.nanargmin(np.where(measured.stable_K, middle_K, np.nan)))
    away_K = outward * (measured.x_K - measured.x_K[lowest])
    rise_KS, rise_K = finite_KS - middle_K[lowest], middle_K - middle_K[lowest]
    bend_K = rise_K / np.maximum(np.abs(away_K), TINY) ** 2
    noisy_K = _scatter(finite_KS) > DEAD_NOISES * (noise or math.inf)
    known = np.flatnonzero(~np.isnan(middle_K))
    far_K = np.where(np.isnan(rise_KS), np.inf, rise_KS).min(axis=1)
    least = max(DEAD_SHARE * abs(middle_K[lowest]), DEAD_RISE * (noise or 0.0))
    for k in sorted(known[away_K[known] > 0], key=lambda k: away_K[k]):
        inner = known[(away_K[known] < away_K[k]) & (known != lowest)]
        is_wall = inner.size > 0 and far_K[k] > WALL_RATIO * float(np.median(bend_K[inner])) * away_K[k] ** 2
        dead = known[away_K[known] >= away_K[k]]
        if (is_wall or noisy_K[k]) and far_K[dead].min() > max(least, rise_K[k] / 2):
            break
    else:
        return np.zeros(rise_KS.shape, bool)
    is_flat = dead.size > 1 and float(np.ptp(rise_K[dead])) <= DEAD_FLAT * float(rise_K[dead].max())
    is_deep = bool(rise_K[k] > DEAD_DEPTH * abs(middle_K[lowest]))
    if not (is_flat or is_deep or noisy_K[dead].any()):
        return np.zeros(rise_KS.shape, bool)
    least_K = np.where(np.isin(np.arange(away_K.size), dead), -np.inf, float(rise_K[dead].min()) / 2)
    # Beside these HPs some seeds died and others did not.
    return np.asarray((away_K > 0)[:, None] & (rise_KS > least_K[:, None]))


def _majority(measured: Measured, noise: float | None) -> Measured:
    """Return the losses without runs that stand apart from the majority of their cell, and the doubt about cells."""
    if measured.lowest is None or not noise:
        return measured
    leveled_KS = _leveled(measured)
    median_K = np.array([_median(cell) for cell in leveled_KS])
    rise_K = median_K - np.nanmin(median_K)
    wide = APART_NOISES * noise
    far_K = np.maximum(wide, APART_SHARE * rise_K)
    apart_KS = np.abs(leveled_KS - median_K[:, None]) > far_K[:, None]
    doubt_K = np.zeros(len(measured.x_K))

    def is_bump(k: int) -> bool:
        """Return whether the middle of a cell lies far above the line between its neighbors: no basin is like that."""
        known = np.flatnonzero(measured.stable_K & (np.arange(median_K.size) != k))
        if not known.size or not known[0] < k < known[-1]:
            return False
        return bool(median_K[k] - np.interp(measured.x_K[k], measured.x_K[known], median_K[known]) > far_K[k])

    for k in np.flatnonzero(measured.stable_K).tolist():
        values = leveled_KS[k][~np.isnan(leveled_KS[k])]
        agree = values.size - int(apart_KS[k].sum())
        spread = float(np.ptp(values))
        if spread > wide and values.size >= FEWEST and 2 * agree > values.size and not is_bump(k):
            doubt_K[k] = float(np.var(values, ddof=1)) / agree if agree == values.size else 0.0
        else:
            apart_KS[k] = False
            doubt_K[k] = (spread / 2) ** 2 if spread > wide else 0.0
    return replace(measured, loss_KS=np.where(apart_KS, np.nan, measured.loss_KS), doubt_K=doubt_K)
