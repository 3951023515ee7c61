"""The transfer: the HP that the base hands over, what it costs at every shape, and what a finding says besides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from planted_lines import MOVES, STAYS, grid_of, line, with_status
from there import there

from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.findings import Finding
from hpxfer.verdict.loss_grid import LossGrid, loss_grids
from hpxfer.verdict.rules import Rules
from hpxfer.verdict.transfer import find, finding_of

X = np.arange(-9.0, -3.0)


def grid(optima: Sequence[float], *, noise: float = 0.004, seeds: int = 3, luck: int = 0) -> LossGrid:
    """Return parabolas at shapes whose loss falls by 0.1 nats each."""
    rng = np.random.default_rng(luck)
    mean_IK = 3 + 0.04 * (X - np.array(optima)[:, None]) ** 2 - 0.1 * np.arange(len(optima))[:, None]
    loss = mean_IK[:, :, None] + noise * rng.standard_normal((len(optima), X.size, seeds))
    return grid_of(*loss.tolist(), log2_values=X.tolist())


def along(found: LossGrid, axis: str) -> LossGrid:
    """Return the same losses along another axis."""
    return LossGrid(rows=tuple(replace(row, axis=axis, scale_name=axis) for row in found.rows))


def only(found: LossGrid, rules: Rules | None = None) -> Finding:
    (finding,) = find([found], rules or Rules())
    return finding


def mean_at(found: LossGrid, i: int, value: float | None) -> float:
    cell = there(found.rows[i].cell(value))
    return there(cell.mean)


@given(
    optima=st.lists(st.floats(-8.0, -5.0), min_size=2, max_size=4),
    noise=st.sampled_from((0.0, 0.004, 0.05)),
    luck=st.integers(0, 100),
)
@settings(deadline=None, max_examples=examples(30))
def test_regrets_compare_measured_means_and_are_never_negative(optima: list[float], noise: float, luck: int) -> None:
    losses = grid(optima, noise=noise, luck=luck)
    found = only(losses)
    for i, shape in enumerate(found.shapes):
        assert shape.best_loss == pytest.approx(mean_at(losses, i, shape.best_value))
        assert shape.transferred_loss == pytest.approx(mean_at(losses, i, found.base_value))
        assert shape.regret_nats == pytest.approx((shape.transferred_loss or 0.0) - (shape.best_loss or 0.0))
        assert there(shape.regret_nats) >= 0
        assert shape.same_cell == (shape.best_value == found.base_value)
        assert not shape.same_cell or there(shape.regret_nats) == 0
        assert 0 <= there(shape.regret_low_nats) <= there(shape.regret_high_nats)
        lowest = min(cell.mean for cell in losses.rows[i].cells if cell.mean is not None)
        assert there(shape.lowest_loss) == pytest.approx(lowest, rel=1e-12)
    assert found.shapes[0].same_cell


@pytest.mark.parametrize("luck", range(3))
def test_axes_that_share_a_base_share_its_optimum_and_its_hp(luck: int) -> None:
    width, other = grid((-6.2, -6.2, -6.2), luck=luck), grid((-6.2, -6.6, -7.0), luck=luck + 50)
    depth = along(LossGrid(rows=(width.rows[0], *other.rows[1:])), "depth")
    one, two = find([width, depth])
    assert one.base_value == two.base_value
    assert one.shapes[0] == two.shapes[0]
    assert one.noise_nats == two.noise_nats
    assert one.shapes[1].optimum != two.shapes[1].optimum
    apart = along(other, "depth")
    assert find([width, apart])[1].shapes[0].optimum != one.shapes[0].optimum  # a base of its own


def test_the_order_of_grids_changes_no_finding_by_more_than_the_draws() -> None:
    width, depth = grid((-6.2, -6.2, -6.2)), along(grid((-6.2, -6.6, -7.0), luck=9), "depth")
    one, other = find([width, depth]), find([depth, width])[::-1]
    for a, b in zip(one, other, strict=True):
        assert (a.key, a.verdict, a.base_value) == (b.key, b.verdict, b.base_value)
        assert a.noise_nats == pytest.approx(b.noise_nats)
        for shape, same in zip(a.shapes, b.shapes, strict=True):
            assert shape.regret_nats == same.regret_nats
            assert shape.optimum.log2_value == pytest.approx(same.optimum.log2_value, abs=0.05)


def test_equal_losses_give_equal_findings() -> None:
    losses = grid((-6.2, -6.0, -5.9))
    assert only(losses) == only(losses)
    (estimates,) = estimate_all([losses])
    assert finding_of(estimates) == only(losses)


def refined(loss_at_6: float, loss_between: float) -> LossGrid:
    """Return a grid whose base has 2^-6.5 too, where the basin has its optimum, with these means there and at 2^-6."""
    mean_K = 3 + 0.04 * (X + 6.5) ** 2
    mean_K[X == -6.0] = loss_at_6
    jitter_K3 = 0.006 * np.random.default_rng(0).permuted(np.tile([-1.0, 0.0, 1.0], (X.size, 1)), axis=1)
    losses = (mean_K[:, None] + jitter_K3).tolist()
    whole = grid_of(losses, losses, log2_values=X.tolist())
    between = [loss_between - 0.006, loss_between + 0.006, loss_between]
    cell = grid_of([between], log2_values=[-6.5]).rows[0].cells[0]
    cells = tuple(sorted((*whole.rows[0].cells, cell), key=lambda found: found.value))
    return LossGrid(rows=(replace(whole.rows[0], cells=cells), whole.rows[1]))


def test_a_search_that_tried_other_values_at_each_shape_hands_over_one_that_all_have() -> None:
    """The best of the base is 2^-6.5, which the other shape lacks. Both have 2^-6, which measured lower by luck."""
    lucky = only(refined(loss_at_6=2.999, loss_between=3.003))
    assert lucky.shapes[0].optimum.grid_value == 2.0**-6.5
    assert lucky.base_value == lucky.shapes[0].lowest_value == 2.0**-6
    assert [shape.transferred for shape in lucky.shapes] == ["measured", "measured"]
    lower = only(refined(loss_at_6=3.01, loss_between=3.0))
    assert lower.base_value == lower.shapes[0].lowest_value == 2.0**-6.5
    assert [shape.transferred for shape in lower.shapes] == ["measured", "missing"]
    assert lower.verdict == "undecided"


def test_a_transferred_hp_that_diverges_costs_everything() -> None:
    found = next(f for f in find(loss_grids(line(MOVES, diverges_above=2.0))) if f.parameterization == "sp")
    top = found.shapes[-1]
    assert (top.transferred, top.regret_nats, top.regret_percent, top.regret_se_nats) == (
        "diverged",
        math.inf,
        None,
        None,
    )
    assert top.over_chance is None or top.over_chance == 1.0
    assert found.verdict == "drifts"


def test_without_a_base_nothing_is_transferred() -> None:
    losses = grid((-6.2, -6.2))
    found = only(LossGrid(rows=tuple(replace(row, is_base=False) for row in losses.rows)))
    assert found.base_value is None
    assert [shape.transferred for shape in found.shapes] == ["missing", "missing"]
    assert (found.transfer_chance, found.move_chance, found.verdict) == (None, None, "undecided")


def test_one_seed_has_regrets_and_no_chances() -> None:
    found = only(grid((-6.2, -6.2, -6.2), seeds=1))
    assert (found.noise_nats, found.transfer_chance, found.move) == (None, None, None)
    for shape in found.shapes:
        assert shape.regret_nats == 0
        assert (shape.regret_se_nats, shape.regret_noise_units, shape.over_chance) == (None, None, None)


def test_notes_name_odd_runs_and_misfits_and_count_missing_trials() -> None:
    frame = line(STAYS, seeds=3).assign(trial_id="t")
    frame.loc[(frame["value"] == 2.0**-7) & (frame["seed"] == 1) & (frame["scale"] == 64.0), "loss"] += 5.0
    frame = with_status(frame, "failed", scale=128.0, value=2.0**-9, seed=0)
    reasons = find(loss_grids(frame))[0].reasons
    named = "the run of width 64, HP 2^-7, seed 1 (t) ends 5 nats above the other seeds of its cell and is left out"
    assert any(why.startswith(named) for why in reasons)
    assert "1 of 54 trials have no result" in reasons
    rough = line(STAYS, seeds=3, noise=0.002)
    zigzag = np.where(np.log2(rough["value"]) % 2 == 0, 0.03, -0.03)
    rough["loss"] += np.where(rough["scale"] == 64.0, zigzag, 0.0)
    found = find(loss_grids(rough))[0]
    assert found.shapes[1].optimum.misfit is not None
    assert any("width 64: cells scatter about every basin" in why for why in found.reasons)
    assert not any("cells scatter" in why for why in find(loss_grids(line(STAYS, seeds=3, noise=0.01)))[0].reasons)


def test_curves_are_drawn_where_an_optimum_is_claimed() -> None:
    found = only(grid((-6.2, -6.2, -12.0), noise=0.002))
    for shape in found.shapes[:2]:
        values, fitted = zip(*shape.curve, strict=True)
        assert values[int(np.argmin(fitted))] == pytest.approx(shape.optimum.log2_value, abs=0.3)
        assert min(fitted) == pytest.approx(shape.best_loss, abs=0.02)
    assert found.shapes[2].optimum.kind == "lower_edge"
    assert found.shapes[2].curve == ()


def test_the_regret_is_also_a_share_of_what_an_octave_costs() -> None:
    found = only(grid((-6.0, -7.0, -8.0), noise=1e-3))
    top = found.shapes[-1]
    assert top.octave_nats == pytest.approx(0.04, rel=0.15)
    assert top.regret_octave_share == pytest.approx((top.regret_nats or 0.0) / (top.octave_nats or 1.0))
    assert top.regret_octave_share == pytest.approx(4.0, rel=0.15)  # two octaves off
    assert there(found.regret_trend).regret_nats_per_doubling > 0.04
