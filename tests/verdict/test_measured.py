"""What was measured at a shape: losses over seeds, walls, the cells that tell where the optimum is, and odd runs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from loss_arrays import losses
from planted_lines import MOVES, STAYS, grid_of, line, with_status
from planted_parabolas import X, all_of, parabola
from planted_sweeps import cell_of

from hpxfer.errors import HpxferError
from hpxfer.intervals import ROUNDING, Floats
from hpxfer.verdict.loss_grid import ShapeLosses, loss_grids
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.odd_runs import measure, odd_runs


def rows_of(frame: pd.DataFrame) -> list[ShapeLosses]:
    return [row for grid in loss_grids(frame) for row in grid.rows]


@pytest.mark.parametrize(
    ("losses", "median"),
    [
        ((3.0,), 3.0),
        ((3.0, 4.0), 3.5),
        ((3.0, math.inf), math.inf),
        ((3.0, 4.0, math.inf), 4.0),
        ((3.0, math.inf, math.inf), math.inf),
        ((math.inf, math.inf), math.inf),
        ((), None),
    ],
)
def test_a_diverged_seed_is_infinite_in_the_median(losses: tuple[float, ...], median: float | None) -> None:
    assert cell_of(0.5, losses).median == median
    assert cell_of(0.5, losses).censored == (median == math.inf)


def test_shapes_are_ordered_and_hold_every_planned_value() -> None:
    frame = with_status(line({**MOVES, **STAYS}), "missing", scale=64.0, value=2.0**-6)
    found = rows_of(frame.sample(frac=1.0, random_state=3))
    keys = [(row.parameterization, row.scale) for row in found]
    assert keys == [(label, scale) for label in ("completep-moe", "sp") for scale in (32.0, 64.0, 128.0)]
    assert all([cell.value for cell in row.cells] == [2.0**e for e in range(-9, -3)] for row in found)
    assert [row.is_base for row in found] == [True, False, False] * 2


def test_failed_and_missing_are_no_data_and_diverged_is_data() -> None:
    frame = line(STAYS, scales=(32.0,))
    frame = with_status(frame, "failed", value=2.0**-9, seed=0)
    frame = with_status(frame, "missing", value=2.0**-8)
    frame = with_status(frame, "diverged", value=2.0**-4)
    (found,) = rows_of(frame)
    by_exponent = {cell.log2: cell for cell in found.cells}
    assert len(by_exponent[-9.0].losses) == 1
    assert by_exponent[-8.0].median is None
    assert not by_exponent[-8.0].censored
    assert by_exponent[-4.0].censored
    assert (found.num_missing, found.num_diverged, found.num_trials) == (3, 2, 12)


def test_a_diverged_row_is_censored_even_with_a_loss_and_a_finished_one_without_it_is_no_data() -> None:
    frame = line(STAYS, scales=(32.0,), seeds=1)
    frame.loc[0, "status"] = "diverged"
    frame.loc[1, "loss"] = math.nan
    assert math.isfinite(frame.loc[0, "loss"])
    first, second, *_ = rows_of(frame)[0].cells
    assert (first.censored, second.median) == (True, None)


def test_a_frame_that_is_no_line_is_refused() -> None:
    with pytest.raises(HpxferError, match="missing: loss"):
        rows_of(line(STAYS).drop(columns="loss"))
    with pytest.raises(HpxferError, match="got 'pruned'"):
        rows_of(with_status(line(STAYS), "pruned", seed=1))


def test_the_base_of_a_grid_and_its_names() -> None:
    grid, other = loss_grids(line({**MOVES, **STAYS}))
    assert (grid.key, other.key) == (("width", "completep-moe"), ("width", "sp"))
    assert grid.scale_name == "width"
    assert [row.name for row in grid.rows] == ["width 32", "width 64", "width 128"]
    assert grid.rows[0].cell(2.0**-6) is grid.rows[0].cells[3]
    assert grid.rows[0].cell(0.3) is None


def test_rows_may_have_seeds_and_values_of_their_own() -> None:
    frame = line(STAYS, seeds=3)
    frame = frame[~((frame["scale"] == 64.0) & ((frame["seed"] == 0) | (frame["value"] == 2.0**-9)))]
    (data,) = loss_grids(frame)
    assert data.rows[1].seeds == (1, 2)
    assert len(data.rows[1].cells) == 5
    assert losses(data).shape == (3, 6, 3)
    assert np.isnan(losses(data)[1, :, 0]).all()
    assert np.isnan(losses(data)[1, 0]).all()
    assert np.isfinite(losses(data)[1, 1:, 1:]).all()


NAN, INF = math.nan, math.inf


def shape(*cells: list[float], x: Floats | None = None) -> Measured:
    """Return what was measured at one shape from the losses of its cells, one per seed."""
    log2 = range(len(cells)) if x is None else x.tolist()
    return measure(grid_of(list(cells), log2_values=log2).rows)[0]


@given(
    levels=st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    holes=st.sets(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=3),
)
def test_the_level_of_a_seed_changes_no_difference_of_means(levels: list[float], holes: set[tuple[int, int]]) -> None:
    """A cell that lacks a seed is not shifted by what the seed adds to the other cells."""
    loss = parabola(noise=0.0, shapes=1)
    for k, s in holes:
        loss[0, k, s] = NAN
    (plain,), (leveled,) = all_of(loss), all_of(loss + np.array(levels))
    if not np.isfinite(loss[0]).any(axis=1).all():
        return
    assert plain.mean_K - plain.mean_K[0] == pytest.approx(3 + 0.02 * (X + 6.2) ** 2 - 3 - 0.02 * 2.8**2, abs=1e-9)
    assert leveled.mean_K - leveled.mean_K[0] == pytest.approx(plain.mean_K - plain.mean_K[0], abs=1e-4)


def test_a_seed_that_diverged_makes_its_cell_unstable_and_half_of_them_diverged() -> None:
    found = shape([3.0] * 3, [2.0] * 3, [2.5, 2.5, INF], [2.5, INF, INF], [NAN] * 3)
    assert found.stable_K.tolist() == [True, True, False, False, False]
    assert found.diverges_K.tolist() == [False, False, False, True, False]
    assert found.has_result_K.tolist() == [True, True, True, True, False]
    assert found.num_K.tolist() == [3, 3, 2, 1, 0]
    assert np.isnan(found.mean_K[4])
    assert shape([3.0, INF], [2.0, 2.0]).diverges_K.tolist() == [True, False]


def test_the_optimum_lies_between_the_closest_cells_that_diverge() -> None:
    found = shape([INF] * 2, [3.0] * 2, [2.0] * 2, [3.0] * 2, [3.5, INF], [1.0, 1.0])
    assert found.lowest == 5  # beyond a cell that diverges training may be stable again
    cut = shape([INF] * 2, [3.0] * 2, [2.0] * 2, [3.0] * 2, [3.5, INF], [5.0, 5.0])
    assert (cut.lowest, cut.low, cut.high) == (2, 0.0, 4.0)
    assert cut.cells_N.tolist() == [1, 2, 3]
    free = shape([3.0], [2.0], [3.0])
    assert (free.low, free.high) == (-INF, INF)


def test_the_fitted_cells_are_those_near_the_lowest_one() -> None:
    rise = [[3 + 0.02 * (k - 5.2) ** 2] for k in range(11)]
    assert shape(*rise).cells_N.tolist() == [3, 4, 5, 6, 7]
    fine = np.arange(0.0, 8.0, 0.5)
    found = shape(*[[3 + 0.02 * (x - 4.1) ** 2] for x in fine], x=fine)
    assert fine[found.cells_N].tolist() == [1.5 + 0.5 * k for k in range(11)]
    coarse = np.arange(0.0, 14.0, 2.0)
    found = shape(*[[3 + 0.02 * (x - 6.1) ** 2] for x in coarse], x=coarse)
    assert coarse[found.cells_N].tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_a_cell_that_blew_up_is_a_wall_and_a_steep_side_is_none() -> None:
    u = np.arange(7.0) - 3.1
    assert shape(*(3 + 0.02 * u**2)[:, None].tolist()).wall is None
    steep = 0.02 * u**2 * (1 + 0.3 * u.clip(0))
    assert shape(*(3 + steep)[:, None].tolist()).wall is None
    blown = 3 + 0.02 * u**2
    blown[5] += 1.0
    found = shape(*blown[:, None].tolist())
    assert found.wall is not None
    assert found.cells_N[found.wall] == 5
    below = blown[::-1]
    assert shape(*below[:, None].tolist()).wall is None  # small HPs do not blow up


@pytest.mark.slow
def test_noise_alone_rarely_makes_a_wall() -> None:
    walls = [found.wall is not None for luck in range(100) for found in all_of(parabola(noise=0.002, luck=luck))]
    assert np.mean(walls) < 0.05


@given(
    losses=st.lists(
        st.lists(st.one_of(st.floats(-5, 50), st.just(INF), st.just(NAN)), min_size=2, max_size=2),
        min_size=1,
        max_size=7,
    )
)
@settings(deadline=None, max_examples=examples(100))
def test_the_laws_of_what_was_measured(losses: list[list[float]]) -> None:
    found = shape(*losses)
    stable = np.flatnonzero(found.stable_K)
    assert (found.lowest is None) == (stable.size == 0)
    assert set(found.cells_N) <= set(stable)
    if found.lowest is not None:
        assert found.lowest in found.cells_N
        agreeing = stable[found.doubt_K[stable] == 0] if (found.doubt_K[stable] == 0).any() else stable
        assert found.mean_K[found.lowest] <= min(found.mean_K[agreeing]) + ROUNDING
        assert found.low < found.x_K[found.lowest] < found.high
        assert found.wall is None or found.cells_N[found.wall] > found.lowest
    given_KS = np.array(losses)[:, ~np.isnan(losses).all(axis=0)]  # a seed without a result is none
    kept = ~np.isnan(found.loss_KS)
    same = kept & ~found.dead_KS
    assert np.array_equal(found.loss_KS[same], given_KS[same])
    assert np.array_equal(found.apart_KS, ~np.isnan(given_KS) & ~kept)
    assert found.stable_K[found.doubt_K > 0].all()


def apart(loss_IKS: Floats) -> list[tuple[int, int, int]]:
    """Return the runs that are left out, by shape, HP and seed."""
    return [(i, k, s) for i, found in enumerate(all_of(loss_IKS)) for k, s in np.argwhere(found.apart_KS).tolist()]


def doubtful(loss_IKS: Floats) -> list[tuple[int, int]]:
    """Return the cells in doubt, by shape and HP."""
    return [(i, k) for i, found in enumerate(all_of(loss_IKS)) for k in np.flatnonzero(found.doubt_K).tolist()]


@pytest.mark.parametrize(("nats", "k", "seeds"), [(-2.0, 0, 3), (-0.3, 3, 4), (0.3, 6, 6), (2.0, 0, 4), (1e9, 3, 3)])
def test_the_majority_of_seeds_wins_in_either_direction(nats: float, k: int, seeds: int) -> None:
    loss = parabola(seeds=seeds)
    loss[1, k, 2] += nats
    assert apart(loss) == [(1, k, 2)]
    assert doubtful(loss) == []
    (run,) = odd_runs(all_of(loss)[1])
    assert (run.why, run.shape, run.value, run.seed) == ("apart", "width 2", 2.0 ** X[k], 2)
    assert run.away_nats == pytest.approx(nats, abs=0.03)


@pytest.mark.parametrize("nats", [-0.3, 0.3])
def test_of_two_seeds_that_disagree_none_is_left_out_and_their_mean_is_in_doubt(nats: float) -> None:
    loss = parabola(seeds=2)
    loss[1, 3, 1] += nats
    assert (apart(loss), doubtful(loss)) == ([], [(1, 3)])
    found = all_of(loss)[1]
    assert math.sqrt(found.doubt_K[3]) == pytest.approx(0.15, abs=0.02)
    assert found.lowest == 2  # 2^-7: the lowest of those whose seeds agree
    assert [run.why for run in odd_runs(found)] == ["disagrees"] * 2


@pytest.mark.parametrize("away", [(0.3, 0.0, -0.3), (0.3, 0.3, 0.0, 0.0), (0.3, 0.3, 0.0)])
def test_seeds_without_a_majority_or_with_one_above_every_basin_are_in_doubt(away: tuple[float, ...]) -> None:
    loss = parabola(seeds=len(away))
    loss[1, 3] += away
    assert (apart(loss), doubtful(loss)) == ([], [(1, 3)])


@pytest.mark.slow
def test_noise_alone_makes_no_run_odd() -> None:
    """Of 1,400 cells each."""
    lucks = range(100)
    assert sum(len(apart(parabola(luck=luck, shapes=2))) for luck in lucks) <= 1
    assert sum(len(doubtful(parabola(luck=luck, shapes=2))) for luck in lucks) <= 2
    assert sum(len(doubtful(parabola(luck=luck, shapes=2, seeds=2))) for luck in lucks) <= 14


@pytest.mark.parametrize("noisy", [0, 2])
def test_no_good_run_of_a_noisy_shape_is_odd(noisy: int) -> None:
    found = 0
    for luck in range(40):
        loss = parabola(0.003, luck=luck)
        loss[noisy] = parabola(0.045, luck=100 + luck)[noisy]
        found += len(apart(loss)) + len(doubtful(loss))
    assert found <= 4  # of 2,520


def test_odd_runs_in_a_tenth_of_the_trials_are_seen() -> None:
    rng = np.random.default_rng(0)
    missed, false = 0, 0
    for luck in range(20):
        loss = parabola(luck=luck, seeds=5)
        hit = rng.uniform(size=loss.shape) < 0.1
        one = hit.sum(axis=2, keepdims=True) == 1
        left_out = np.array([found.apart_KS for found in all_of(loss + 0.3 * hit)])
        missed += int((hit & one & ~left_out).sum())
        false += int((left_out & ~hit & (hit.sum(axis=2, keepdims=True) <= 1)).sum())
    assert missed <= 3
    assert false == 0


def test_seeds_far_up_a_wall_differ_and_are_in_doubt() -> None:
    loss = parabola()
    loss[:, 6] = [3.2, 3.3, 3.28]
    assert apart(loss) == []
    assert doubtful(loss) == [(0, 6), (1, 6), (2, 6)]


@given(levels=st.lists(st.floats(-2, 2), min_size=3, max_size=3), luck=st.integers(0, 50))
def test_the_level_of_a_seed_makes_no_run_odd(levels: list[float], luck: int) -> None:
    loss = parabola(luck=luck)
    loss[0, 2, 1] -= 0.4
    assert apart(loss + np.array(levels)) == apart(loss)


def dead(loss_IKS: Floats, first: int, level: float, scatter: float) -> Floats:
    """Return losses that end about a level from one HP on."""
    out = loss_IKS.copy()
    rng = np.random.default_rng(5)
    out[:, first:] = level + scatter * rng.standard_normal(out[:, first:].shape)
    return out


@pytest.mark.parametrize(("first", "level", "scatter"), [(6, 7.2, 0.1), (5, 7.2, 0.1), (5, 7.2, 0.003), (4, 4.5, 0.3)])
@pytest.mark.parametrize("seeds", [2, 3])
def test_dead_runs_count_as_diverged(first: int, level: float, scatter: float, seeds: int) -> None:
    given_IKS = dead(parabola(seeds=seeds), first, level, scatter)
    for found in all_of(given_IKS):
        assert found.diverges_K.tolist() == [k >= first for k in range(X.size)]
        assert found.dead_KS[first:].all()
        assert {run.why for run in odd_runs(found)} == {"dead"}
    below = given_IKS[:, ::-1]
    assert all(found.dead_KS[: X.size - first].all() for found in all_of(below))


def test_one_seed_is_dead_where_losses_stay_far_above() -> None:
    flat = dead(parabola(seeds=1), 4, 7.2, 0.05)
    assert [found.dead_KS.sum() for found in all_of(flat)] == [3, 3, 3]


def test_seeds_that_died_beside_a_dead_hp_count_as_diverged() -> None:
    loss = dead(parabola(seeds=3), 6, 7.2, 0.1)
    loss[1, 5, 0] = 7.1
    found = all_of(loss)[1]
    assert np.argwhere(found.dead_KS).tolist() == [[5, 0], [6, 0], [6, 1], [6, 2]]
    assert not found.apart_KS.any()


def test_what_rises_as_a_basin_does_is_not_dead() -> None:
    steep = parabola(curvature=0.3, seeds=3)
    wall = parabola(seeds=3)
    wall[:, 6] += 1.0
    spike = parabola(seeds=3)
    spike[1, 6, 0] += 4.0
    for loss in (steep, wall, spike, parabola(seeds=1, curvature=0.3)):
        assert not any(found.dead_KS.any() for found in all_of(loss))
