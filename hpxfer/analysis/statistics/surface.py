"""Two HPs at once: the optimum of a quadratic surface in both logs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.searches import points_of
from hpxfer.analysis.statistics.statistic import Found, Statistic, frame_of, listed
from hpxfer.intervals import CONFIDENCE, Bools, Floats
from hpxfer.scaling.hps import HPs
from hpxfer.search import tunes_points
from hpxfer.store import LOSS_COLUMNS
from hpxfer.trial import PRODUCT, base_hps
from hpxfer.verdict.thresholds import LOCAL_OCTAVES

COEFFICIENTS = 6


@dataclass(frozen=True, kw_only=True)
class Surface:
    """loss = a + b.u + u' H u / 2 over u = (log2 of the first HP, log2 of the second), fitted by least squares.

    `interaction` is by how many octaves the optimum of the first HP moves per octave of the second, -H12 / H11. It is 0
    if the two may be tuned separately. Errors are None without degrees of freedom.
    """

    coefficients: tuple[float, ...]  # of 1, u, v, u^2, u v, v^2, about the center
    center: tuple[float, float]  # log2
    lowest: tuple[float, float] | None  # log2 of the lowest point; None if there is none, or if it is off the grid
    loss: float | None  # nats, there
    interaction: float | None = None  # None if the loss does not bend along the first HP
    interaction_se: float | None = None
    interaction_low: float | None = None  # 95%
    interaction_high: float | None = None
    residual_nats: float | None = None  # standard deviation about the surface
    num_cells: int = 0  # that it is fitted to
    why_no_optimum: str | None = None

    @property
    def curvatures(self) -> tuple[float, float]:
        """Nats per octave squared, as in `Optimum`: H11 / 2, H22 / 2."""
        return self.coefficients[3], self.coefficients[5]

    def at(self, log2_first: float, log2_second: float) -> float:
        """Return the fitted loss in nats."""
        u, v = log2_first - self.center[0], log2_second - self.center[1]
        return math.fsum(c * t for c, t in zip(self.coefficients, (1, u, v, u * u, u * v, v * v), strict=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class PairCells:
    """The mean losses over two HPs, +inf where a seed diverged, and which of them the surface is fitted to."""

    log2_first_N: Floats
    log2_second_N: Floats
    loss_N: Floats
    fitted_N: Bools


def fit_surface(
    first: Sequence[float], second: Sequence[float], losses: Sequence[float]
) -> tuple[PairCells, Surface | str]:
    """Return the cells and the surface through the losses of trials at (first, second) > 0, or why there is none.

    Losses are nats, NaN without a result and +inf if the trial diverged. A cell is the mean over its seeds; a cell with
    a diverged seed is not fitted. The fit uses the cells within LOCAL_OCTAVES of the lowest one in both HPs, as a basin
    is no parabola further out, or all cells if these are too few. It needs six, not all on two lines.
    """
    x, y, z = _cells(first, second, losses)
    if (used := _near(x, y, z)) is None:
        none = PairCells(log2_first_N=x, log2_second_N=y, loss_N=z, fitted_N=np.zeros(x.size, dtype=bool))
        return none, f"the finite cells do not determine a surface: {COEFFICIENTS} are needed"
    x0, y0 = float(x[used].mean()), float(y[used].mean())
    u, v = x[used] - x0, y[used] - y0
    design = quadratic(u, v)
    found = np.linalg.lstsq(design, z[used], rcond=None)[0]
    residual = z[used] - design @ found
    freedom = u.size - COEFFICIENTS
    variance = float(residual @ residual) / freedom if freedom else None
    _, p, q, c, m, d = (float(coefficient) for coefficient in found)
    at, why = _lowest(p, q, c, m, d, (float(u.min()), float(u.max())), (float(v.min()), float(v.max())))
    return PairCells(log2_first_N=x, log2_second_N=y, loss_N=z, fitted_N=used), Surface(
        **_interaction(design, c, m, variance, freedom),
        coefficients=tuple(found.tolist()),
        center=(x0, y0),
        lowest=None if at is None else (at[0] + x0, at[1] + y0),
        loss=None if at is None else float((quadratic(np.array(at[:1]), np.array(at[1:])) @ found)[0]),
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
            if np.linalg.matrix_rank(quadratic(u, v)) == COEFFICIENTS:
                return np.asarray(used)
    return None


def quadratic(u: Floats, v: Floats) -> Floats:
    """Return the terms of a quadratic in u and v, (N, 6): 1, u, v, u^2, u v, v^2."""
    return np.stack([np.ones_like(u), u, v, u * u, u * v, v * v], axis=1)


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


Pair = tuple[dict[str, Any], PairCells, Surface | str]  # labels, cells, and the surface or why there is none


def pairs_of(inputs: Inputs) -> list[Pair]:
    """Return the cells and the surface of each pair of HPs, shape and arm; the base once if its trials are shared."""
    out: list[Pair] = []
    seen: set[tuple[str, str, frozenset[str]]] = set()
    for first, second in combinations(inputs.results.spec.grid, 2) if inputs.results.spec.product else ():
        cells = _product_cells(inputs, first, second)
        for (label, shape), found in cells.groupby(["parameterization", "shape"], sort=True):
            rows = found.drop_duplicates("trial_id")
            key = (first, second, frozenset(rows["trial_id"]))
            if key in seen:
                continue
            seen.add(key)
            labels: dict[str, Any] = {
                "parameterization": str(label),
                "first": first,
                "second": second,
                "shape": str(shape),
            }
            labels["is_base"] = bool(rows["is_base"].iloc[0])
            out.append((labels, *fit_surface(*(rows[name].to_list() for name in (first, second, "loss")))))
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


LABELS = {
    "parameterization": "the arm",
    "first": "one HP",
    "second": "the other HP",
    "shape": "the name of the shape",
    "is_base": "whether it is the base",
}
COLUMNS = {
    **LABELS,
    "lowest_log2_first": "log2 of the first HP at the lowest point; None if there is none on the grid",
    "lowest_log2_second": "log2 of the second HP there",
    "loss_nats": "at the lowest point",
    "interaction": "octaves by which the first HP's optimum moves per octave of the second",
    "interaction_se": "its standard error",
    "interaction_low": "its 95% interval",
    "interaction_high": "its upper end",
    "curvature_first": "nats per octave squared",
    "curvature_second": "nats per octave squared",
    "residual_nats": "standard deviation about the surface",
    "num_cells": "that the surface is fitted to",
}
CELLS = {
    **LABELS,
    "log2_first": "log2 of the first HP",
    "log2_second": "log2 of the second HP",
    "loss_nats": "mean over seeds; None where a seed diverged",
    "rise_nats": "over the best cell of the shape",
    "fitted_nats": "of the surface; None without one",
    "is_fitted": "whether the surface is fitted to the cell, as it is near the lowest one",
}


def _surfaces(inputs: Inputs) -> Found:
    spec, rows, unknown = inputs.results.spec, list[dict[str, Any]](), list[tuple[str, str]]()
    for first, second in combinations(spec.grid, 2) if not spec.product else ():
        why = f"{first} and {second} are scanned as two lines, which do not determine a surface: set product: true"
        unknown.append((f"{first} {second}", why))
    for labels, _, surface in inputs.once(pairs_of):
        name = f"{labels['parameterization']} {labels['first']} {labels['second']} {labels['shape']}"
        if isinstance(surface, str):
            unknown.append((name, surface))
            continue
        if surface.why_no_optimum is not None:
            unknown.append((name, surface.why_no_optimum))
        lowest = surface.lowest or (None, None)
        of = {"lowest_log2_first": lowest[0], "lowest_log2_second": lowest[1], "loss_nats": surface.loss}
        of |= dict(zip(("curvature_first", "curvature_second"), surface.curvatures, strict=True))
        rows.append({**labels, **of, **{name: getattr(surface, name) for name in COLUMNS if hasattr(surface, name)}})
    frame = frame_of(rows, COLUMNS)
    return Found(frame=frame, title=_said(frame), unknown=tuple(unknown))


def _said(frame: pd.DataFrame) -> str:
    return listed(
        [
            f"the best {row.first} of {row.parameterization} moves by {row.interaction:+.2f} octaves per octave of "
            f"{row.second}"
            for row in frame[frame["is_base"].astype(bool) & frame["interaction"].notna()].itertuples()
        ]
    )


def _pair_cells(inputs: Inputs) -> Found:
    rows = []
    for labels, cells, surface in inputs.once(pairs_of):
        at = (cells.log2_first_N.tolist(), cells.log2_second_N.tolist(), cells.loss_N.tolist(), cells.fitted_N.tolist())
        best = min((loss for loss in at[2] if math.isfinite(loss)), default=0.0)
        for x, y, loss, fitted in zip(*at, strict=True):
            finite = math.isfinite(loss)
            rows.append(
                {
                    **labels,
                    "log2_first": x,
                    "log2_second": y,
                    "loss_nats": loss if finite else None,
                    "rise_nats": loss - best if finite else None,
                    "fitted_nats": None if isinstance(surface, str) else surface.at(x, y),
                    "is_fitted": fitted,
                }
            )
    return Found(frame=frame_of(rows, CELLS))


SURFACES = Statistic(
    name="surfaces",
    title="Have two HPs to be tuned together?",
    note="The interaction is by how many octaves the first HP's optimum moves per octave of the second.",
    compute=_surfaces,
    columns=COLUMNS,
)
PAIR_CELLS = Statistic(
    name="pair_cells",
    title="The losses over two HPs at each shape",
    compute=_pair_cells,
    columns=CELLS,
    is_table=False,
)
