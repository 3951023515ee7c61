"""The stability map: the fraction of seeds that diverges at each HP and scale, and how far optima are from the edge."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Found, Statistic, arms, by_axis, frame_of, listed
from hpxfer.verdict import Finding, LossGrid, SeedLosses, fit_drift

COLUMNS = {
    "axis": "the axis of the sweep",
    "parameterization": "the arm",
    "hp": "an HP that is scanned",
    "scale_name": "what the scale is",
    "shape": "the name of the shape",
    "scale": "of the shape",
    "value": "of the HP",
    "loss_nats": "median over seeds; None without a result, or if it diverged",
    "diverged_share": "of the seeds; None without a result",
    "edge_log2": "of the shape: the largest HP with all seeds finite; None if none diverged or all did",
    "all_diverge": "whether no HP is stable at this shape",
    "optimum_log2": "of the shape",
    "distance_octaves": "from the optimum up to the edge",
    "edge_octaves_per_doubling": "the drift of the edge; None unless it was seen at every shape",
}
NO_RESULT = "no trial of this line has a result"


def stability_map(grid: LossGrid, finding: Finding, hp: str) -> list[dict[str, Any]]:
    """Return a row per cell of one parameterization along one axis, from its losses and the finding on them."""
    seen = [(shape.scale, shape.edge_log2) for shape in finding.shapes if shape.edge_log2 is not None]
    finite = [(scale, edge) for scale, edge in seen if math.isfinite(edge)]
    # An edge beyond the grid is not seen: a drift of the others alone would mislead.
    is_whole = len(finite) == len(finding.shapes)
    drift = fit_drift([scale for scale, _ in finite], [edge for _, edge in finite]) if is_whole else None
    return [
        {
            "axis": finding.axis,
            "parameterization": finding.parameterization,
            "hp": hp,
            "scale_name": finding.scale_name,
            "shape": row.shape,
            "scale": row.scale,
            "value": value,
            "loss_nats": _median(row.cell(value)),
            "diverged_share": _share(row.cell(value)),
            "edge_log2": _finite(shape.edge_log2),
            "all_diverge": shape.edge_log2 == -math.inf,
            "optimum_log2": shape.optimum.log2_value,
            "distance_octaves": _finite(shape.edge_octaves),
            "edge_octaves_per_doubling": drift.octaves_per_doubling if drift else None,
        }
        for row, shape in zip(grid.rows, finding.shapes, strict=True)
        for value in grid.values
    ]


def _maps(inputs: Inputs) -> Found:
    rows, unknown = list[dict[str, Any]](), []
    for line in inputs.lines:
        for finding in line.report.findings:
            cells = stability_map(line.by_key[finding.key].grid, finding, line.hp)
            if all(cell["diverged_share"] is None for cell in cells):
                unknown.append((f"{' '.join(finding.key)} {line.hp}", NO_RESULT))
            else:
                rows += cells
    frame = frame_of(rows, COLUMNS)
    of_judged = frame[frame["hp"] == inputs.hp]
    title = by_axis(of_judged, lambda of: listed([distance(*arm) for arm in arms(of)]))
    return Found(frame=frame, title=title, unknown=tuple(unknown))


def distance(name: str, cells: pd.DataFrame) -> str:
    """Return how many octaves the optima of an arm are from divergence, e.g. `mup at least 2`."""
    known, shares = cells["distance_octaves"].dropna(), cells["diverged_share"].dropna()
    if len(known) and known.min() <= 0:
        return f"{name} none"
    if len(known):
        return f"{name} at least {known.min():.2g}"
    if (shares > 0).all():
        return f"{name} always diverges"
    return f"{name} " + ("unknown (no optimum there)" if (shares > 0).any() else "never diverged")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _share(cell: SeedLosses | None) -> float | None:
    if cell is None or not cell.losses:
        return None
    return 1 - len(cell.finite) / len(cell.losses)


def _median(cell: SeedLosses | None) -> float | None:
    return None if cell is None or cell.median is None or cell.censored else cell.median


STABILITY = Statistic(
    name="stability",
    title="How many octaves is the optimum from divergence?",
    note="The stability edge is the largest HP at which all seeds stay finite. It is no optimum; its drift is given "
    "for comparison.",
    compute=_maps,
    columns=COLUMNS,
    of_lines=True,
    is_table=False,
)
