"""The stability map: the fraction of seeds that diverges at each HP and scale, and how far optima are from the edge."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.verdict import Finding, LossGrid, SeedLosses, fit_drift


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
    edge_octaves_per_doubling: float | None = None  # the drift of the edge, over the scales where it was seen
    why_not: str | None = None


def stability_map(grid: LossGrid, finding: Finding, hp: str) -> StabilityMap:
    """Return the map of one parameterization along one axis: its losses, and the finding on them."""
    cells = [[row.cell(value) for value in grid.values] for row in grid.rows]
    edges = [shape.edge_log2 for shape in finding.shapes]
    seen = [(shape.scale, edge) for shape, edge in zip(finding.shapes, edges, strict=True) if edge is not None]
    finite = [(scale, edge) for scale, edge in seen if math.isfinite(edge)]
    drift = fit_drift([scale for scale, _ in finite], [edge for _, edge in finite])
    measured = any(cell is not None and cell.losses for row in cells for cell in row)
    return StabilityMap(
        axis=finding.axis,
        scale_name=finding.scale_name,
        parameterization=finding.parameterization,
        hp=hp,
        shapes=tuple(row.shape for row in grid.rows),
        scales=tuple(row.scale for row in grid.rows),
        values=grid.values,
        diverged_share=tuple(tuple(_share(cell) for cell in row) for row in cells),
        losses=tuple(tuple(_median(cell) for cell in row) for row in cells),
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


def _maps(inputs: Inputs) -> list[StabilityMap]:
    return [
        stability_map(line.by_key[finding.key].grid, finding, line.hp)
        for line in inputs.lines
        for finding in line.report.findings
    ]


def _share(cell: SeedLosses | None) -> float | None:
    if cell is None or not cell.losses:
        return None
    return 1 - len(cell.finite) / len(cell.losses)


def _median(cell: SeedLosses | None) -> float | None:
    return None if cell is None or cell.median is None or cell.censored else cell.median


STABILITY = Statistic(
    name="stability",
    title="Stability edge",
    note="The stability edge is the largest HP at which all seeds stay finite. It is no optimum; its drift is given "
    "for comparison.",
    compute=_maps,
    of_lines=True,
)
