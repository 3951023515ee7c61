"""A public sweep of others: learning rates of a MoE model at two widths, with one seed.

The final macro losses of marin's sweep of 2026-04-25 over multipliers of its LR formula, with residual updates scaled
by 1 / sqrt(depth): in
`.agents/logbooks/moe-depth-mup-lr-sweep.md` of marin-community/marin, commit 05768c5 (Apache-2.0). The
largest multiplier at the larger width had not ended.
"""

from __future__ import annotations

import math

import pandas as pd
import pytest

from hpxfer.verdict.judge import NO_NOISE
from hpxfer.verdict.report import report_line

MULTIPLIERS = (0.25, 0.354, 0.5, 0.707, 1.0, 1.41, 2.0, 2.83, 4.0)
LOSSES = {
    512: (4.0652, 3.9475, 3.8671, 3.8302, 3.8188, 3.8284, 3.8695, 3.9301, 4.0568),
    768: (3.5921, 3.5244, 3.4701, 3.4387, 3.4279, 3.4295, 3.4724, 3.5249, math.nan),
}


def line() -> pd.DataFrame:
    rows = [
        {
            "axis": "width",
            "scale_name": "width",
            "scale": float(width),
            "shape": f"w{width}",
            "is_base": width == 512,
            "parameterization": "depth-mup",
            "value": value,
            "seed": 0,
            "loss": loss,
            "status": "missing" if math.isnan(loss) else "finished",
        }
        for width, losses in LOSSES.items()
        for value, loss in zip(MULTIPLIERS, losses, strict=True)
    ]
    return pd.DataFrame(rows)


def test_one_seed_is_undecided_and_says_why() -> None:
    (finding,) = report_line(line(), sweep="marin", hp="lr").findings
    assert finding.verdict == "undecided"
    assert NO_NOISE in finding.reasons
    assert finding.transfer_chance is None
    assert finding.base_value == 1.0
    assert finding.to_add[0].values == (4.0,)  # first the trial that has no result, then seeds


def test_one_seed_places_the_optima_without_an_interval() -> None:
    (finding,) = report_line(line(), sweep="marin", hp="lr").findings
    for shape in finding.shapes:
        assert shape.optimum.kind == "interior"
        assert shape.optimum.log2_value == pytest.approx(0.0, abs=0.35)
        assert (shape.optimum.low_log2, shape.optimum.high_log2) == (None, None)
    assert finding.move is None
    assert finding.drift is not None
    assert finding.drift.low is None
