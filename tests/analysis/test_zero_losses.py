"""Training losses that reach exactly zero have no normalized curve, and cause no warning, which is an error here."""

from __future__ import annotations

import numpy as np

from hpxfer.analysis.statistics.collapse import Collapse, ShapeCurves, collapse


def curves(shape: str, last: float) -> ShapeCurves:
    """Return two seeds whose losses fall from 2 to `last`."""
    losses = np.linspace(2.0, last, 40)
    return ShapeCurves(
        shape=shape, scale=1.0, is_base=False, steps_N=np.arange(40), loss_SN=np.stack([losses, 1.001 * losses])
    )


def test_losses_of_zero_have_no_normalized_curve() -> None:
    ended = np.r_[np.linspace(2.0, 0.0, 20), np.zeros(20)]
    zero = [
        ShapeCurves(shape=name, scale=1.0, is_base=False, steps_N=np.arange(40), loss_SN=np.stack([ended, ended]))
        for name in ("w8", "w16")
    ]
    found = collapse(zero, Collapse(axis="width", parameterization="sp", hp="lr", scale_name="width"))
    assert (found.shares, found.deviation, found.below_noise) == ((), (), None)
    assert found.spread_percent[-1] == 0.0


def test_other_losses_have_one() -> None:
    found = collapse(
        [curves("w8", 1.0), curves("w16", 0.9)],
        Collapse(axis="width", parameterization="sp", hp="lr", scale_name="width"),
    )
    assert found.shares
    assert found.curves[0].normalized
