"""Loss collapse: curves that coincide or part at a known step, seeds that share batches, and losses of zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from found_rows import rows

from hpxfer.analysis.statistics.collapse import Collapse, ShapeCurves, collapse, normalized_collapse, parts

STEPS = np.arange(240)


def planted(
    seed: int = 0,
    *,
    shapes: int = 4,
    seeds: int = 3,
    part_at: float = math.inf,
    gap: float = 0.05,
    luck: float = 0.01,
    batch: float = 0.1,
) -> Collapse:
    """Return the collapse of curves that are one up to `part_at`, then `gap` nats apart from one shape to the next."""
    rng = np.random.default_rng(seed)
    batch_SN = batch * rng.standard_normal((seeds, STEPS.size))  # the same for all shapes
    every = []
    for i in range(shapes):
        apart = np.where(part_at <= STEPS, gap * i, 0.0)
        own = luck * rng.standard_normal((seeds, 1)) + 0.01 * rng.standard_normal((seeds, STEPS.size))
        loss_SN = 2 + 2 * np.exp(-STEPS / 40) - apart + batch_SN + own
        every.append(ShapeCurves(shape=f"w{i}", scale=2.0**i, is_base=i == 0, steps_N=STEPS, loss_SN=loss_SN))
    return collapse(every)


def parts_at(seed: int, **how: Any) -> float | None:
    found: float | None = planted(seed, **how).numbers["parts_at"]
    return found


def test_curves_part_where_they_were_planted_to() -> None:
    found = [step for seed in range(30) if (step := parts_at(seed, part_at=120.0)) is not None]
    assert len(found) >= 28
    assert np.median(found) == pytest.approx(120, abs=10)


def test_equal_curves_are_not_said_to_part_although_a_seed_s_luck_lasts() -> None:
    assert sum(parts_at(seed) is not None for seed in range(200)) <= 10
    assert planted(0).numbers["parts_by_share_at"] is None


def test_the_noise_is_that_of_a_shape_s_mean_without_what_its_seeds_share() -> None:
    noise = [row.noise_nats for seed in range(50) for row in rows(planted(seed, luck=0.02, shapes=6).curves)]
    assert np.mean(noise) == pytest.approx(0.02 / math.sqrt(3), rel=0.15)


def test_the_difference_to_the_base_is_paired_by_seeds() -> None:
    """Batches move the losses of all shapes alike, so they are not in its error."""
    found = rows(planted(part_at=120.0, batch=5.0, luck=0.0).curves)
    last = {row.scale: row for row in found}
    assert (last[1.0].difference_nats, last[1.0].difference_se) == (0, 0)
    assert [last[2.0**i].difference_nats for i in range(4)] == pytest.approx([0, -0.05, -0.1, -0.15], abs=0.03)
    assert all(0 < last[2.0**i].difference_se < 0.02 for i in (1, 2, 3))
    assert {row.difference_se for row in rows(planted(seeds=1).curves)} == {None}


def test_one_seed_gives_the_spread_and_says_why_there_is_no_noise() -> None:
    single = planted(seeds=1, part_at=120.0, gap=0.5)
    assert {row.noise_nats for row in rows(single.curves)} == {row.noise_floor for row in rows(single.normalized)}
    assert {row.noise_nats for row in rows(single.curves)} == {None}
    assert (single.numbers["parts_at"], single.numbers["below_noise"]) == (None, None)
    assert parts(pd.Series(dict(single.numbers))) == "unknown (one seed)"
    assert single.numbers["parts_by_share_at"] == pytest.approx(122.0, abs=5)


def test_a_diverged_shape_is_shown_and_left_out_of_the_numbers() -> None:
    loss_SN = np.full((2, 240), 3.0)
    broken_SN = np.where(STEPS < 50, loss_SN, np.nan)
    every = [
        ShapeCurves(shape="w0", scale=1, is_base=True, steps_N=STEPS, loss_SN=loss_SN),
        ShapeCurves(shape="w1", scale=2, is_base=False, steps_N=STEPS, loss_SN=loss_SN),
        ShapeCurves(shape="w2", scale=4, is_base=False, steps_N=STEPS, loss_SN=broken_SN, diverged_step=50),
    ]
    found = collapse(every)
    assert found.numbers["left_out"] == "w2"
    curves = {shape: rows(found.curves, shape=shape) for shape in ("w0", "w1", "w2")}
    assert {shape: len(curve) for shape, curve in curves.items()} == {"w0": 48, "w1": 48, "w2": 10}
    assert [row for curve in curves.values() for row in curve if row.diverged] == [curves["w2"][-1]]
    assert {row.spread_nats for row in rows(found.curves)} == {0.0}
    assert collapse(every[1:]).why_not == "1 shapes have whole curves, 2 are needed"
    assert collapse([]).why_not is not None


def test_normalized_curves_fall_on_one_with_the_true_floor_only() -> None:
    """loss = floor + amplitude * universal(share of the run), at runs of different length and amplitude."""
    every = []
    for i, steps in enumerate((200, 400, 800)):
        at = np.arange(steps)
        loss_N = 1.7 + (1.0 - 0.2 * i) * ((at + 1) / steps) ** -0.3
        every.append(ShapeCurves(shape=f"t{i}", scale=steps, is_base=i == 0, steps_N=at, loss_SN=loss_N[None]))
    late = slice(3, None)  # a mean over the first bins of a steep curve depends on how many steps it has
    assert normalized_collapse(every, 1.7)[2][late].max() < 0.003
    assert normalized_collapse(every, 0.0)[2][late].max() > 0.02


def test_luck_that_lasts_cancels_in_normalized_curves_and_a_gap_that_comes_late_does_not() -> None:
    def below_noise(**how: Any) -> float:
        return float(np.mean([planted(k, luck=0.1, batch=0.01, **how).numbers["below_noise"] for k in range(20)]))

    assert below_noise() > 0.8
    assert below_noise(part_at=200.0, gap=0.3) < 0.4


def test_losses_of_zero_have_no_normalized_curve() -> None:
    ended = np.r_[np.linspace(2.0, 0.0, 20), np.zeros(20)]
    zero = [
        ShapeCurves(shape=name, scale=1.0, is_base=False, steps_N=np.arange(40), loss_SN=np.stack([ended, ended]))
        for name in ("w8", "w16")
    ]
    found = collapse(zero)
    assert (found.normalized, found.numbers["below_noise"]) == ((), None)
    assert rows(found.curves)[-1].spread_percent == 0.0


def test_two_seeds_still_see_a_gap_of_ten_times_the_noise() -> None:
    assert sum(parts_at(seed, seeds=2, part_at=60.0, gap=0.1) is not None for seed in range(30)) >= 24
