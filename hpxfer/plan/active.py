"""The active parameters of MoE shapes beside those of the dense shape that they are compared with."""

from __future__ import annotations

import math

from hpxfer.model.cost import active_without_embeddings
from hpxfer.trial import Expansion


def active_lines(expansion: Expansion) -> tuple[str, ...]:
    """Return one line per dense shape: the active parameters of the MoE shapes that are nearest to it.

    Embeddings and the readout are left out, as they grow with the vocabulary alone. A sweep without a dense shape, or
    without experts, has no line.
    """
    counts = {
        shape.label(): (bool(shape.num_experts), active_without_embeddings(shape, expansion.setting_at(shape)))
        for shape in expansion.shapes
    }
    dense = {label: count for label, (is_moe, count) in counts.items() if not is_moe and count > 0}
    lines: dict[str, list[str]] = {}
    for label, (is_moe, count) in counts.items():
        if is_moe and dense and count > 0:
            nearest = min(dense, key=lambda other: abs(math.log(count / dense[other])))
            lines.setdefault(nearest, []).append(f"{label} {count / dense[nearest]:.3g}")
    return tuple(
        f"active parameters without embeddings, relative to the dense {label} ({dense[label]:,}): {', '.join(ratios)}"
        for label, ratios in lines.items()
    )
