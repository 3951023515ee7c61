"""The stability map: which share of seeds diverges at each HP and scale, and how far optima stay from the edge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpxfer.analysis.basin import Basin, Point
from hpxfer.analysis.drift import fit_drift
from hpxfer.analysis.findings import Finding


@dataclass(frozen=True, kw_only=True)
class StabilityMap:
    """One parameterization along one axis. Rows are scales, columns HP values, both ascending."""

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    shapes: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    diverged_share: tuple[tuple[float | None, ...], ...] = ()  # None: no result
    losses: tuple[tuple[float | None, ...], ...] = ()  # nats, median over seeds; None: no result, or diverged
    edges_log2: tuple[float | None, ...] = ()  # the largest HP with all seeds finite; None if none diverged or all did
    all_diverge: tuple[bool, ...] = ()  # no HP is stable at this scale
    optima_log2: tuple[float | None, ...] = ()
    distance_octaves: tuple[float | None, ...] = ()  # from the optimum up to the edge
    edge_octaves_per_doubling: float | None = None  # the edge's drift, over the scales where it was seen
    why_not: str | None = None


def stability_map(group: Sequence[Basin], finding: Finding, hp: str) -> StabilityMap:
    """Return the map of one parameterization along one axis: its basins by scale, and what was found of them."""
    values = sorted({point.value for basin in group for point in basin.points})
    grid = [[basin.point(value) for value in values] for basin in group]
    edges = [shape.edge_log2 for shape in finding.shapes]
    seen = [(shape.scale, edge) for shape, edge in zip(finding.shapes, edges, strict=True) if edge is not None]
    finite = [(scale, edge) for scale, edge in seen if math.isfinite(edge)]
    drift = fit_drift([scale for scale, _ in finite], [edge for _, edge in finite])
    measured = any(point is not None and point.losses for row in grid for point in row)
    return StabilityMap(
        axis=finding.axis,
        scale_name=finding.scale_name,
        parameterization=finding.parameterization,
        hp=hp,
        shapes=tuple(basin.shape for basin in group),
        scales=tuple(basin.scale for basin in group),
        values=tuple(values),
        diverged_share=tuple(tuple(_share(point) for point in row) for row in grid),
        losses=tuple(tuple(_median(point) for point in row) for row in grid),
        edges_log2=tuple(None if edge is None or math.isinf(edge) else edge for edge in edges),
        all_diverge=tuple(edge == -math.inf for edge in edges),
        optima_log2=tuple(shape.optimum.log2_value for shape in finding.shapes),
        distance_octaves=tuple(
            None if shape.edge_octaves is None or math.isinf(shape.edge_octaves) else shape.edge_octaves
            for shape in finding.shapes
        ),
        edge_octaves_per_doubling=drift.octaves_per_doubling if drift else None,
        why_not=None if measured else "no trial of this line has a result",
    )


def _share(point: Point | None) -> float | None:
    if point is None or not point.losses:
        return None
    return 1 - len(point.finite) / len(point.losses)


def _median(point: Point | None) -> float | None:
    return None if point is None or point.median is None or point.censored else point.median
