"""The transfer: the HP that the base hands to every shape, its regret there, and the finding with its verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hpxfer.verdict.basin import basin_width, stability_edge
from hpxfer.verdict.estimate import Estimates, estimate_all
from hpxfer.verdict.findings import Finding, ShapeFinding, Transferred
from hpxfer.verdict.judge import judge
from hpxfer.verdict.loss_grid import LossGrid, SeedLosses, ShapeLosses
from hpxfer.verdict.noise import cells_near_optimum, difference_se, paired_noise, seed_noise
from hpxfer.verdict.optimum import Optimum
from hpxfer.verdict.regret import regret_trend
from hpxfer.verdict.thresholds import WIDTH_SHARES
from hpxfer.verdict.what_to_add import what_to_add


def find(grids: Sequence[LossGrid]) -> tuple[Finding, ...]:
    """Return the finding of each grid, not yet compared with the control. The noise of seeds is pooled over all."""
    return tuple(finding_of(estimates) for estimates in estimate_all(grids))


def finding_of(estimates: Estimates) -> Finding:
    """Return the finding of one parameterization along one axis, not yet compared with the control."""
    grid, optima = estimates.fitted.grid, estimates.optima
    base_value = _base_value(grid, optima)
    near = [cells_near_optimum(row, base_value) for row in grid.rows]
    noise = seed_noise(cell for cells in near for cell in cells)
    paired = paired_noise(near)
    shapes = tuple(
        _shape(estimates, i, base_value, noise, noise if paired is None else paired) for i in range(len(grid.rows))
    )
    finding = Finding(
        axis=grid.axis,
        scale_name=grid.scale_name,
        parameterization=grid.parameterization,
        base_value=base_value,
        shapes=shapes,
        drift=estimates.drift,
        noise_nats=noise,
        verdict="undecided",
        reasons=(),
        regret_trend=regret_trend(
            [shape.scale for shape in shapes],
            [shape.best_loss for shape in shapes],
            [shape.regret_nats for shape in shapes],
            [shape.regret_se_nats for shape in shapes],
        ),
    )
    verdict, reasons = judge(finding)
    to_add = what_to_add(finding, grid) if verdict == "undecided" else ()
    needs = tuple(f"to decide: {addition.text}" for addition in to_add)
    return replace(finding, verdict=verdict, reasons=(*reasons, *needs, *_notes(grid, optima)), to_add=to_add)


def _base_value(grid: LossGrid, optima: Sequence[Optimum]) -> float | None:
    """Return the HP that is transferred: the best of the base by the fit.

    A search that refines each shape by itself tries other HPs at each. If not every shape has the best HP of the fit,
    but every shape has the one with the lowest measured loss at the base, that one is transferred.
    """
    base = next((i for i, row in enumerate(grid.rows) if row.is_base), None)
    fitted_best = None if base is None else optima[base].grid_value
    if base is None or fitted_best is None or all(row.cell(fitted_best) for row in grid.rows):
        return fitted_best
    finite = [cell for cell in grid.rows[base].cells if cell.median is not None and math.isfinite(cell.median)]
    lowest = min(finite, key=lambda cell: cell.median or 0.0, default=None)
    everywhere = lowest is not None and all(row.cell(lowest.value) for row in grid.rows)
    return lowest.value if lowest is not None and everywhere else fitted_best


def _shape(
    estimates: Estimates, i: int, base_value: float | None, noise: float | None, difference_noise: float | None
) -> ShapeFinding:
    """Return the finding at shape `i`. A regret compares measured cells; nothing is interpolated."""
    row, optimum = estimates.fitted.grid.rows[i], estimates.optima[i]
    best_loss, best_value, best = _best(row, optimum)
    moved = row.cell(base_value)
    moved_loss = moved.median if moved else None
    regret = _regret(best_loss, moved_loss)
    se = None
    if difference_noise is not None and best and moved and regret is not None and math.isfinite(regret):
        se = difference_se(difference_noise, moved, best)
    finite = regret if regret is not None and math.isfinite(regret) else None
    edge, at = stability_edge(row), optimum.log2_value
    return ShapeFinding(
        shape=row.shape,
        scale=row.scale,
        is_base=row.is_base,
        optimum=optimum,
        best_value=best_value,
        best_loss=best_loss,
        transferred=_transferred(moved),
        transferred_loss=moved_loss,
        regret_nats=regret,
        regret_percent=100 * finite / best_loss if finite is not None and best_loss else None,
        regret_noise_units=finite / noise if finite is not None and noise else None,
        regret_se_nats=se,
        num_seeds=len(row.seeds),
        num_diverged=row.num_diverged,
        num_missing=row.num_missing,
        width_quarter_octaves=basin_width(estimates.fitted, i, WIDTH_SHARES[0]),
        width_one_octaves=basin_width(estimates.fitted, i, WIDTH_SHARES[1]),
        edge_log2=edge,
        edge_octaves=edge - at if edge is not None and at is not None else None,
    )


def _best(row: ShapeLosses, optimum: Optimum) -> tuple[float | None, float | None, SeedLosses | None]:
    """Return the loss, the HP and the cell of the lowest fitted loss; without a fit, of the lowest median."""
    chosen = row.cell(optimum.grid_value)
    if chosen is not None and chosen.median is not None and not chosen.censored:
        return chosen.median, chosen.value, chosen
    measured = [(cell.median, cell.value, cell) for cell in row.cells if cell.finite and not cell.censored]
    return min(measured, default=(None, None, None), key=lambda found: found[:2])


def _regret(best_loss: float | None, moved_loss: float | None) -> float | None:
    """Return the regret in nats: +inf if the transferred HP diverges, even if every other HP does too."""
    if moved_loss is None or moved_loss == math.inf:
        return moved_loss
    return None if best_loss is None else moved_loss - best_loss


def _transferred(moved: SeedLosses | None) -> Transferred:
    if moved is None or moved.median is None:
        return "missing"
    return "diverged" if moved.censored else "measured"


def _notes(grid: LossGrid, optima: Sequence[Optimum]) -> list[str]:
    """Return what a reader should know besides the verdict."""
    notes = []
    if any(row.is_base and optimum.kind == "at_divergence" for row, optimum in zip(grid.rows, optima, strict=True)):
        notes.append("the base optimum sits next to divergence: a finer grid would place it better")
    if missing := sum(row.num_missing for row in grid.rows):
        notes.append(f"{missing} of {sum(row.num_trials for row in grid.rows)} trials have no result")
    if values := sorted({cell.value for row in grid.rows for cell in row.off_axis}):
        listed = ", ".join(f"{value:g}" for value in values)
        notes.append(f"left out, as a log2 axis cannot show it: HP {listed}")
    return notes
