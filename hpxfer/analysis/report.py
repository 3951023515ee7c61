"""The transfer report: from the rows of a line to optima, regrets, drift and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import pandas as pd

from hpxfer.analysis.basin import Basin, Point, basins
from hpxfer.analysis.basin_facts import basin_width, stability_edge
from hpxfer.analysis.bootstrap import SeedNoise, pool_noise
from hpxfer.analysis.estimate import Fitted, estimate, fitted
from hpxfer.analysis.findings import Finding, ShapeFinding, Transferred, TransferReport
from hpxfer.analysis.noise import cells_near_optimum, difference_se, paired_noise, seed_noise
from hpxfer.analysis.optimum import Optimum
from hpxfer.analysis.regret import regret_trend
from hpxfer.analysis.thresholds import WIDTH_SHARES
from hpxfer.analysis.verdict import judge, with_control
from hpxfer.analysis.what_to_add import what_to_add

if TYPE_CHECKING:
    from hpxfer.spec import SweepSpec


class Results(Protocol):
    """What a report reads: the sweep, and one HP's line as rows of (axis, shape, parameterization, value, seed)."""

    @property
    def spec(self) -> SweepSpec: ...

    def line(self, hp: str, loss: str, /) -> pd.DataFrame: ...


def transfer_report(results: Results, hp: str | None = None, loss: str | None = None) -> TransferReport:
    """Return the report on one HP of a sweep; by default the HP and the loss that the sweep says are judged."""
    hp = hp or results.spec.judged_hp
    loss = loss or results.spec.judge.loss
    return report_line(results.line(hp, loss), sweep=results.spec.name, hp=hp, loss=loss)


def report_line(line: pd.DataFrame, *, sweep: str, hp: str, loss: str) -> TransferReport:
    """Return the report on a line. Its findings are ordered by axis and name, the control last on every axis."""
    findings = list(find(basins(line)))
    findings.sort(key=lambda one: (one.axis, one.is_control, one.parameterization))
    held = tuple(with_control(one, findings) for one in findings)
    return TransferReport(sweep=sweep, hp=hp, loss=loss, findings=held)


def find(every: Sequence[Basin]) -> tuple[Finding, ...]:
    """Return a finding for each axis and parameterization of basins ordered by both, not yet held against the control.

    The noise of seeds is pooled over all of them.
    """
    groups = groupby(every, key=lambda one: (one.axis, one.parameterization))
    fits = [fitted(tuple(group)) for _, group in groups]
    noise = pool_noise([(one.cube, one.fit) for one in fits if one.fit is not None])
    return tuple(_finding(one, noise) for one in fits)


def _finding(one: Fitted, noise_of_seeds: SeedNoise | None) -> Finding:
    """Return the finding of one parameterization along one axis."""
    group, found = one.group, estimate(one, noise_of_seeds)
    base_value = _base_value(group, found.optima)
    near = [cells_near_optimum(basin, base_value) for basin in group]
    noise = seed_noise(cell for cells in near for cell in cells)
    paired = paired_noise(near)
    shapes = tuple(
        _shape(one, i, found.optima[i], base_value, noise, noise if paired is None else paired)
        for i in range(len(group))
    )
    finding = Finding(
        axis=group[0].axis,
        scale_name=group[0].scale_name,
        parameterization=group[0].parameterization,
        base_value=base_value,
        shapes=shapes,
        drift=found.drift,
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
    to_add = what_to_add(finding, group) if verdict == "undecided" else ()
    said = tuple(f"to decide: {addition.text}" for addition in to_add)
    return replace(finding, verdict=verdict, reasons=(*reasons, *said, *_notes(group, found.optima)), to_add=to_add)


def _base_value(group: Sequence[Basin], optima: Sequence[Optimum]) -> float | None:
    """Return the HP that is transferred: the base's best by the fit.

    A search that refines each shape by itself gives the others the base's lowest measured one; where the fit's is none
    that they try, that one is transferred.
    """
    base = next((at for at, basin in enumerate(group) if basin.is_base), None)
    fitted_best = None if base is None else optima[base].grid_value
    if base is None or fitted_best is None or all(basin.point(fitted_best) for basin in group):
        return fitted_best
    finite = [one for one in group[base].points if one.median is not None and math.isfinite(one.median)]
    lowest = min(finite, key=lambda one: one.median or 0.0, default=None)
    everywhere = lowest is not None and all(basin.point(lowest.value) for basin in group)
    return lowest.value if lowest is not None and everywhere else fitted_best


def _shape(
    one: Fitted, i: int, optimum: Optimum, base_value: float | None, noise: float | None, of_difference: float | None
) -> ShapeFinding:
    """Return the finding at one shape. Regret compares measured cells; nothing is interpolated."""
    basin = one.group[i]
    best_loss, best_value, best = _best(basin, optimum)
    moved = basin.point(base_value)
    moved_loss = moved.median if moved else None
    regret = _regret(best_loss, moved_loss)
    se = None
    if of_difference is not None and best and moved and regret is not None and math.isfinite(regret):
        se = difference_se(of_difference, moved, best)
    finite = regret if regret is not None and math.isfinite(regret) else None
    edge, at = stability_edge(basin), optimum.log2_value
    return ShapeFinding(
        shape=basin.shape,
        scale=basin.scale,
        is_base=basin.is_base,
        optimum=optimum,
        best_value=best_value,
        best_loss=best_loss,
        transferred=_transferred(moved),
        transferred_loss=moved_loss,
        regret_nats=regret,
        regret_percent=100 * finite / best_loss if finite is not None and best_loss else None,
        regret_noise_units=finite / noise if finite is not None and noise else None,
        regret_se_nats=se,
        num_seeds=len(basin.seeds),
        num_diverged=basin.num_diverged,
        num_missing=basin.num_missing,
        width_quarter_octaves=basin_width(one, i, WIDTH_SHARES[0]),
        width_one_octaves=basin_width(one, i, WIDTH_SHARES[1]),
        edge_log2=edge,
        edge_octaves=edge - at if edge is not None and at is not None else None,
    )


def _best(basin: Basin, optimum: Optimum) -> tuple[float | None, float | None, Point | None]:
    """Return the loss, the HP and the point of the lowest fitted loss; of the lowest median where nothing is fitted."""
    chosen = basin.point(optimum.grid_value)
    if chosen is not None and chosen.median is not None and not chosen.censored:
        return chosen.median, chosen.value, chosen
    measured = [(point.median, point.value, point) for point in basin.points if point.finite and not point.censored]
    return min(measured, default=(None, None, None), key=lambda one: one[:2])


def _regret(best_loss: float | None, moved_loss: float | None) -> float | None:
    """Return the regret in nats: +inf if the transferred HP diverges, even where every other does too."""
    if moved_loss is None or moved_loss == math.inf:
        return moved_loss
    return None if best_loss is None else moved_loss - best_loss


def _transferred(moved: Point | None) -> Transferred:
    if moved is None or moved.median is None:
        return "missing"
    return "diverged" if moved.censored else "measured"


def _notes(group: Sequence[Basin], optima: Sequence[Optimum]) -> list[str]:
    """Return what a reader should know beside the verdict."""
    notes = []
    if any(basin.is_base and optimum.kind == "at_divergence" for basin, optimum in zip(group, optima, strict=True)):
        notes.append("the base optimum sits next to divergence: a finer grid would place it better")
    if missing := sum(basin.num_missing for basin in group):
        notes.append(f"{missing} of {sum(basin.num_trials for basin in group)} trials have no result")
    if values := sorted({point.value for basin in group for point in basin.off_axis}):
        listed = ", ".join(f"{value:g}" for value in values)
        notes.append(f"left out, as a log2 axis has no place for it: HP {listed}")
    return notes
