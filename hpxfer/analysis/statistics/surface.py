"""Two HPs at once: the optimum of a quadratic surface in both logs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.searches import points_of
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.scaling.hps import HPs
from hpxfer.search import tunes_points
from hpxfer.store import LOSS_COLUMNS
from hpxfer.trial import PRODUCT, base_hps
from hpxfer.verdict import CONFIDENCE, LOCAL_OCTAVES, Bools, Floats

COEFFICIENTS = 6


@dataclass(frozen=True, kw_only=True)
class SurfaceCell:
    """The cells at one pair of HP values."""

    log2_first: float
    log2_second: float
    loss: float | None  # nats, mean over seeds; None where a seed diverged
    fitted: bool  # whether the surface is fitted to it, as it is near the lowest cell


@dataclass(frozen=True, kw_only=True)
class Surface:
    """loss = a + b.u + u' H u / 2 over u = (log2 of the first HP, log2 of the second), fitted by least squares.

    `interaction` is by how many octaves the optimum of the first HP moves per octave of the second, -H12 / H11. It is 0
    if the two may be tuned separately. Errors are None without degrees of freedom.
    """

    first: str = ""
    second: str = ""
    shape: str = ""
    is_base: bool = False
    parameterization: str = ""
    cells: tuple[SurfaceCell, ...] = ()
    coefficients: tuple[float, ...] = ()  # of 1, u, v, u^2, u v, v^2, about the center
    center: tuple[float, float] | None = None  # log2
    log2_values: tuple[float, float] | None = None  # the lowest point; None if there is none, or if it is off the grid
    loss: float | None = None  # nats, there
    curvatures: tuple[float, float] | None = None  # nats per octave squared, as in `Optimum`: H11 / 2, H22 / 2
    interaction: float | None = None  # None if the loss does not bend along the first HP
    interaction_se: float | None = None
    interaction_low: float | None = None  # 95%
    interaction_high: float | None = None
    residual_nats: float | None = None  # standard deviation about the surface
    num_cells: int = 0  # that it is fitted to
    why_no_optimum: str | None = None
    why_not: str | None = None  # no surface at all

    def at(self, log2_first: float, log2_second: float) -> float | None:
        """Return the fitted loss in nats; None without a surface."""
        if self.center is None:
            return None
        u, v = log2_first - self.center[0], log2_second - self.center[1]
        return math.fsum(c * t for c, t in zip(self.coefficients, (1, u, v, u * u, u * v, v * v), strict=True))


def fit_surface(
    first: Sequence[float], second: Sequence[float], losses: Sequence[float], blank: Surface | None = None
) -> Surface:
    """Return the surface through the losses of trials at (first, second) > 0, in the fields of `blank`.

    Losses are nats, NaN without a result and +inf if the trial diverged. A cell is the mean over its seeds; a cell with
    a diverged seed is not fitted. The fit uses the cells within LOCAL_OCTAVES of the lowest one in both HPs, as a basin
    is no parabola further out, or all cells if these are too few. It needs six, not all on two lines.
    """
    blank = blank or Surface()
    x, y, z = _cells(first, second, losses)
    if (used := _near(x, y, z)) is None:
        cells = _surface_cells(x, y, z, np.zeros(x.size, dtype=bool))
        return replace(
            blank, cells=cells, why_not=f"the finite cells do not determine a surface: {COEFFICIENTS} are needed"
        )
    x0, y0 = float(x[used].mean()), float(y[used].mean())
    u, v = x[used] - x0, y[used] - y0
    design = _design(u, v)
    found = np.linalg.lstsq(design, z[used], rcond=None)[0]
    residual = z[used] - design @ found
    freedom = u.size - COEFFICIENTS
    variance = float(residual @ residual) / freedom if freedom else None
    _, p, q, c, m, d = (float(coefficient) for coefficient in found)
    at, why = _lowest(p, q, c, m, d, (float(u.min()), float(u.max())), (float(v.min()), float(v.max())))
    return replace(
        blank,
        **_interaction(design, c, m, variance, freedom),
        cells=_surface_cells(x, y, z, used),
        coefficients=tuple(found.tolist()),
        center=(x0, y0),
        log2_values=None if at is None else (at[0] + x0, at[1] + y0),
        loss=None if at is None else float((_design(np.array(at[:1]), np.array(at[1:])) @ found)[0]),
        curvatures=(c, d),
        residual_nats=None if variance is None else math.sqrt(variance),
        num_cells=int(u.size),
        why_no_optimum=why,
    )


def _cells(first: Sequence[float], second: Sequence[float], losses: Sequence[float]) -> tuple[Floats, Floats, Floats]:
    """Return log2 HPs and mean losses of the cells with a result; +inf where a seed diverged."""
    by_cell: dict[tuple[float, float], list[float]] = defaultdict(list)
    for a, b, loss in zip(first, second, losses, strict=True):
        if a > 0 and b > 0 and not math.isnan(loss):
            by_cell[math.log2(a), math.log2(b)].append(loss)
    rows = [(*at, math.fsum(found) / len(found)) for at, found in sorted(by_cell.items())]
    table = np.array(rows, dtype=float).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _near(x: Floats, y: Floats, z: Floats) -> Bools | None:
    """Return True for the cells that the surface is fitted to; None if no cells determine one."""
    finite = np.isfinite(z)
    if not finite.any():
        return None
    lowest = int(np.argmin(np.where(finite, z, np.inf)))
    near = finite & (np.abs(x - x[lowest]) <= LOCAL_OCTAVES) & (np.abs(y - y[lowest]) <= LOCAL_OCTAVES)
    for used in (near, finite):
        if used.sum() >= COEFFICIENTS:
            u, v = x[used] - x[used].mean(), y[used] - y[used].mean()
            if np.linalg.matrix_rank(_design(u, v)) == COEFFICIENTS:
                return np.asarray(used)
    return None


def _design(u: Floats, v: Floats) -> Floats:
    return np.stack([np.ones_like(u), u, v, u * u, u * v, v * v], axis=1)


def _surface_cells(x: Floats, y: Floats, z: Floats, used: Bools) -> tuple[SurfaceCell, ...]:
    rows = zip(x.tolist(), y.tolist(), z.tolist(), used.tolist(), strict=True)
    return tuple(
        SurfaceCell(log2_first=a, log2_second=b, loss=loss if math.isfinite(loss) else None, fitted=fitted)
        for a, b, loss, fitted in rows
    )


def _interaction(design: Floats, c: float, m: float, variance: float | None, freedom: int) -> dict[str, Any]:
    """Return the interaction, with its error to first order."""
    if c <= 0:
        return {}
    slope = -m / (2 * c)
    if variance is None:
        return {"interaction": slope}
    by = np.array([0, 0, 0, m / (2 * c * c), -1 / (2 * c), 0])
    se = math.sqrt(max(variance * float(by @ np.linalg.inv(design.T @ design) @ by), 0.0))
    half = se * float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    return {
        "interaction": slope,
        "interaction_se": se,
        "interaction_low": slope - half,
        "interaction_high": slope + half,
    }


def _lowest(
    p: float, q: float, c: float, m: float, d: float, ends_u: tuple[float, float], ends_v: tuple[float, float]
) -> tuple[tuple[float, float] | None, str | None]:
    """Return the lowest point of p u + q v + c u^2 + m u v + d v^2 within the grid, or why there is none."""
    bend = 4 * c * d - m * m
    if c <= 0 or bend <= 0:
        return None, "the surface has no lowest point"
    u, v = (m * q - 2 * d * p) / bend, (m * p - 2 * c * q) / bend
    if not (ends_u[0] <= u <= ends_u[1] and ends_v[0] <= v <= ends_v[1]):
        return None, "the lowest point is off the grid"
    return (u, v), None


def _surfaces(inputs: Inputs) -> list[Surface]:
    """Return a surface for each pair of HPs, shape and parameterization; the base once if its trials are shared."""
    spec, out = inputs.results.spec, []
    seen: set[tuple[str, str, frozenset[str]]] = set()
    for first, second in combinations(spec.grid, 2):
        if not spec.product:
            why = f"{first} and {second} are scanned as two lines, which do not determine a surface: set product: true"
            out.append(Surface(first=first, second=second, why_not=why))
            continue
        cells = _product_cells(inputs, first, second)
        for (label, shape), rows in cells.groupby(["parameterization", "shape"], sort=True):
            rows = rows.drop_duplicates("trial_id")
            key = (first, second, frozenset(rows["trial_id"]))
            if key in seen:
                continue
            seen.add(key)
            blank = Surface(
                first=first,
                second=second,
                shape=str(shape),
                is_base=bool(rows["is_base"].iloc[0]),
                parameterization=str(label),
            )
            values, second_values, losses = (rows[name].to_list() for name in (first, second, "loss"))
            out.append(fit_surface(values, second_values, losses, blank))
    return out


def _held(inputs: Inputs) -> dict[str, HPs]:
    """Return parameterization -> the values at which a pair's plane holds all other HPs.

    In a product at the base alone these are the values of the best point, and otherwise the base values.
    """
    out = {label: base_hps(part.spec) for label, (part, _) in inputs.results.expansion.arms.items()}
    if tunes_points(inputs.results.spec):
        for arm in inputs.once(points_of):
            if (best := arm.best()) is not None:
                out |= dict.fromkeys(arm.arm.labels, best.hps)
    return out


def _product_cells(inputs: Inputs, first: str, second: str) -> pd.DataFrame:
    """Return the cells of a product that scan two HPs, all others at the values that are held, with `loss`.

    A loss is in nats, +inf if the trial diverged and NaN without a result.
    """
    cells, spec = inputs.results.cells, inputs.results.spec
    rows = cells["line"].isin([first, PRODUCT])
    held = inputs.once(_held)
    for other in spec.grid:
        if other not in (first, second):
            base = cells["parameterization"].map({label: hps.get(other) for label, hps in held.items()})
            rows &= np.isclose(cells[other], base.astype(float), rtol=1e-9, atol=0.0)
    found = cells[rows].rename(columns={LOSS_COLUMNS[inputs.loss]: "loss"})
    measured = found["loss"].where(found["status"] == "finished")
    return found.assign(loss=measured.mask(found["status"] == "diverged", math.inf)).reset_index(drop=True)


SURFACES = Statistic(
    name="surfaces",
    title="Two HPs at once",
    note="The interaction is by how many octaves the first HP's optimum moves per octave of the second.",
    compute=_surfaces,
)
