"""The fit of basins near their lowest points: one parabola per shape, and one cubic part that all shapes share.

    loss_ik = a_i + b_i (x_k - center_i) + c_i (x_k - center_i)^2 + d (x_k - center_i)^3

A real basin is steeper towards large learning rates. A parabola through it puts the optimum too low: by 1.7 g octaves
over five octave points, if the loss goes as c x^2 (1 + g x). One cubic per shape would follow that, at three times the
error of the parabola. The cubic part depends on the loss more than on the shape, so a shared one costs little. What is
wrong with a shared cubic part is wrong alike at every shape, and cancels in a drift. The model is linear: a shift of
the centers only changes a, b and c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpxfer.verdict.loss_grid import Bools, Floats, LossGrid
from hpxfer.verdict.thresholds import LOCAL_OCTAVES, LOCAL_POINTS, MIN_POINTS

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalFit:
    """The fit of the shapes `rows_F` of a grid, which are those with at least three cells.

    Shape letters: F fitted shapes, N cells of all of them, P coefficients, B draws.
    """

    rows_F: Ints  # indices of the shapes in the grid
    center_F: Floats  # log2 HP, as all positions here
    low_F: Floats  # the ends of the cells fitted
    high_F: Floats
    shape_N: Ints  # index into rows_F
    cell_N: Ints  # index into x_K
    weight_N: Floats  # seeds per cell
    design_NP: Floats
    solve_PN: Floats  # coefficients = solve_PN @ means
    coefficients_P: Floats
    residual_N: Floats  # mean minus fit, nats

    @property
    def ends_2F(self) -> Floats:
        """The ends of the range in which an optimum is looked for: three times as long as that of the cells fitted."""
        length_F = self.high_F - self.low_F
        return np.array([self.low_F - length_F, self.high_F + length_F])

    def optima(self, change_BP: Floats | None = None, tail_BF: Floats | None = None) -> Floats:
        """Return log2 of the HP at which each fitted basin is lowest, (F,), or (B, F) for changed coefficients.

        `tail_BF` scales each change, by its own factor for every optimum.
        """
        b, c, d = self.parts(self.coefficients_P)
        if change_BP is not None and tail_BF is not None:
            b, c, d = (part + tail_BF * change for part, change in zip((b, c, d), self.parts(change_BP), strict=True))
        low_F, high_F = self.ends_2F - self.center_F
        return self.center_F + lowest(b, c, d, low_F, high_F)

    def slope_of_optima(self) -> Floats:
        """Return the derivatives of the optima by the coefficients, (F, P). They are 0 where a basin has no minimum."""
        num = self.rows_F.size
        _, c, d = self.parts(self.coefficients_P)
        u = self.optima() - self.center_F
        bend = 2 * c + 6 * d * u
        scale = np.where(bend > 0, -1 / np.where(bend > 0, bend, 1.0), 0.0)
        out = np.zeros((num, self.coefficients_P.size))
        rows = np.arange(num)
        out[rows, 3 * rows + 1] = scale
        out[rows, 3 * rows + 2] = 2 * u * scale
        if self.coefficients_P.size > 3 * num:
            out[:, -1] = 3 * u**2 * scale
        return out

    def change_at_optima(self, change_BP: Floats) -> Floats:
        """Return the change of the loss at each fitted optimum, (B, F), in nats, for changed coefficients.

        To first order this is also the change of the lowest loss. The move of the minimum itself is of second order.
        """
        b, c, d = self.parts(change_BP)
        u = self.optima() - self.center_F
        return np.asarray(change_BP[:, : 3 * self.rows_F.size : 3] + u * (b + u * (c + u * d)))

    def parts(self, coefficients: Floats) -> tuple[Floats, Floats, Floats]:
        """Return b, c and d of each shape, (..., F). d is 0 if there are too few cells for a cubic part."""
        num = self.rows_F.size
        abc = coefficients[..., : 3 * num].reshape(*coefficients.shape[:-1], num, 3)
        d = coefficients[..., 3 * num :] if coefficients.shape[-1] > 3 * num else np.zeros((1,))
        return abc[..., 1], abc[..., 2], np.broadcast_to(d, abc.shape[:-1])

    def loss(self, f: int, x: Floats) -> Floats:
        """Return the fitted loss of shape `f` in nats, where x is log2 HP."""
        a = self.coefficients_P[3 * f]
        b, c, d = (part[f] for part in self.parts(self.coefficients_P))
        u = x - self.center_F[f]
        return np.asarray(a + u * (b + u * (c + u * d)))


def lowest(b: Floats, c: Floats, d: Floats, low: Floats, high: Floats) -> Floats:
    """Return the minimum of b u + c u^2 + d u^3, clipped to [low, high]; without one, the end to which it falls."""
    inside = c * c - 3 * b * d
    root = c + np.sqrt(np.maximum(inside, 0.0))
    found = (inside >= 0) & (root > 0) & (c > 0)
    at = np.where(found, -b / np.where(found, root, 1.0), np.where(b > 0, -np.inf, np.inf))
    return np.clip(at, low, high)


def fit_local(grid: LossGrid) -> LocalFit | None:
    """Return the fit of a grid; None if no shape has three stable cells in one basin."""
    used_IK, center_I = windows(grid)
    rows_F = np.flatnonzero(used_IK.sum(1) >= MIN_POINTS)
    if not rows_F.size:
        return None
    shape_N, cell_N = np.nonzero(used_IK[rows_F])
    x_N, num = grid.x_K[cell_N], rows_F.size
    u_N = x_N - center_I[rows_F][shape_N]
    cubic = shape_N.size - 3 * num >= 2
    design_NP = np.zeros((shape_N.size, 3 * num + cubic))
    at_N = np.arange(shape_N.size)
    for power in range(3):
        design_NP[at_N, 3 * shape_N + power] = u_N**power
    if cubic:
        design_NP[:, -1] = u_N**3
    weight_N = grid.num_seeds_IK[rows_F[shape_N], cell_N].astype(float)
    root_N = np.sqrt(weight_N)
    solve_PN = np.linalg.pinv(design_NP * root_N[:, None], rcond=1e-10) * root_N
    mean_N = grid.mean_IK[rows_F[shape_N], cell_N]
    coefficients_P = solve_PN @ mean_N
    return LocalFit(
        rows_F=rows_F,
        center_F=center_I[rows_F],
        low_F=np.array([x_N[shape_N == f].min() for f in range(num)]),
        high_F=np.array([x_N[shape_N == f].max() for f in range(num)]),
        shape_N=shape_N,
        cell_N=cell_N,
        weight_N=weight_N,
        design_NP=design_NP,
        solve_PN=solve_PN,
        coefficients_P=coefficients_P,
        residual_N=mean_N - design_NP @ coefficients_P,
    )


def windows(grid: LossGrid) -> tuple[Bools, Floats]:
    """Return which cells are fitted, (I, K), and the center of each shape in log2 HP, (I,)."""
    used = np.zeros_like(grid.basin_IK)
    centers = np.zeros(len(used))
    for i, basin_K in enumerate(grid.basin_IK):
        cells = np.flatnonzero(basin_K)
        if cells.size < MIN_POINTS:
            continue
        x, mean = grid.x_K[cells], grid.mean_IK[i, cells]
        pilot = _nearest(x, float(x[np.argmin(mean)]))
        centers[i] = _vertex(x[pilot], mean[pilot])
        near = _nearest(x, centers[i])
        near |= np.abs(x - centers[i]) <= LOCAL_OCTAVES
        used[i, cells[near]] = True
    return used, centers


def _nearest(x: Floats, center: float) -> Bools:
    """Return True for the points closest to the center: LOCAL_POINTS per side, and one more."""
    order = np.argsort(np.abs(x - center), kind="stable")[: 2 * LOCAL_POINTS + 1]
    out = np.zeros(x.size, dtype=bool)
    out[order] = True
    return out


def _vertex(x: Floats, y: Floats) -> float:
    """Return the vertex of the least-squares parabola, within the range of x; the lowest point if it opens down."""
    middle = x.mean()
    c, b, _ = np.linalg.lstsq(np.vander(x - middle, 3), y, rcond=None)[0]
    if c <= 0:
        return float(x[np.argmin(y)])
    return float(np.clip(middle - b / (2 * c), x[0], x[-1]))
