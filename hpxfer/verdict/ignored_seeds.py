"""Seeds that change nothing: a trainer that ignores its seed has no noise, and its verdicts are falsely sure. Pure.

Equal losses in one cell may be chance, as trainers print few digits. So two seeds count as one if they have the same
loss in every cell of a shape that has both, and in two cells at least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations

from hpxfer.verdict.loss_grid import ShapeLosses

MIN_CELLS = 2


def ignored_seeds(rows: Iterable[ShapeLosses]) -> str | None:
    """Return in words where two seeds end with exactly the same losses, or None. Losses that diverged do not count."""
    for row in rows:
        by_seed = [cell.by_seed for cell in row.cells]
        for one, other in combinations(row.seeds, 2):
            num = 0
            for found in by_seed:
                a, b = found.get(one, math.inf), found.get(other, math.inf)
                if math.isfinite(a + b):
                    if a != b:
                        break
                    num += 1
            else:
                if num >= MIN_CELLS:
                    return (
                        f"{row.name}: seeds {one} and {other} end with exactly the same loss in all {num} cells: "
                        "the training ignores its seed, so that the noise is not known; pass the seed on"
                    )
    return None
