"""The optimum of the means: planted ones are found, bounds are bounds, and the laws of a minimum hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from planted_lines import GRID, STAYS, grid_of, line

from hpxfer.verdict.loss_grid import loss_grids
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.odd_runs import measure
from hpxfer.verdict.optimum import Optimum, measured_optimum, range_of, vertex
from hpxfer.verdict.thresholds import DEAD_SHARE

INF = math.inf
LOG2 = (-4.0, -3.0, -2.0, -1.0, 0.0)
LOSSES = st.lists(st.floats(1.0, 10.0).map(lambda x: round(x, 6)), min_size=5, max_size=5)


def one_seed(losses: Sequence[float | None], log2: Sequence[float] = LOG2) -> Measured:
    """Return what one seed measured: None without a result, inf where it diverged."""
    cells = [[math.nan if loss is None else loss] for loss in losses]
    return measure(grid_of(cells, log2_values=log2).rows)[0]


def of_one_seed(losses: Sequence[float | None], log2: Sequence[float] = LOG2) -> Optimum:
    return measured_optimum(one_seed(losses, log2))


def of_frame(frame: pd.DataFrame) -> Optimum:
    return measured_optimum(measure(loss_grids(frame)[0].rows)[0])


@pytest.mark.parametrize("planted", [-7.5, -6.0, -5.9, -5.51])
def test_a_parabola_gives_back_its_vertex(planted: float) -> None:
    at = round(planted)
    x = [at - 1.0, float(at), at + 1.0]
    assert vertex(x, [3 + 0.1 * (e - planted) ** 2 for e in x]) == pytest.approx(planted, abs=1e-9)
    found = of_one_seed([3 + 0.1 * (e - planted) ** 2 for e in GRID], GRID)
    assert (found.kind, found.bracketed) == ("interior", True)
    assert abs((found.log2_value or 0.0) - planted) <= 0.5 + 1e-9


def test_a_parabola_on_an_uneven_grid_gives_back_its_vertex() -> None:
    x = [-7.0, -6.5, -4.0]
    assert vertex(x, [(e + 6.4) ** 2 for e in x]) == pytest.approx(-6.4, abs=1e-9)


@given(rises=st.tuples(st.floats(0.01, 5), st.floats(0.0, 5)), gaps=st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)))
@settings(deadline=None, max_examples=examples(60))
def test_a_vertex_lies_between_the_middles_of_its_neighbors(
    rises: tuple[float, float], gaps: tuple[float, float]
) -> None:
    at = vertex([-gaps[0], 0.0, gaps[1]], [rises[0], 0.0, rises[1]])
    assert -gaps[0] / 2 - 1e-9 <= at <= gaps[1] / 2 + 1e-9


@pytest.mark.parametrize(
    ("losses", "kind", "log2_value", "bracketed"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], "lower_edge", -4.0, False),
        ([5.0, 4.0, 3.0, 2.0, 1.0], "upper_edge", 0.0, False),
        ([5.0, 4.0, 3.0, 2.0, INF], "at_divergence", -1.0, True),
        ([INF, 2.0, 3.0, 4.0, 5.0], "at_divergence", -3.0, True),
        ([1.0, 2.0, 3.0, INF, INF], "lower_edge", -4.0, False),
        ([3.0, 2.0, INF, INF, INF], "none", None, False),
        ([INF] * 5, "none", None, False),
        ([None] * 5, "none", None, False),
        ([4.0, 3.0, 3.0, 4.0, 5.0], "interior", -3.0, True),
        ([4.0, 3.0, None, 4.0, 5.0], "interior", -3.0, False),
        ([None, 3.0, 4.0, 5.0, 6.0], "lower_edge", -3.0, False),
        ([4.0, 3.0, 2.0, 3.0, None], "interior", -2.0, True),
        ([5.0, 4.0, 3.0, 2.0, None], "upper_edge", -1.0, False),
    ],
)
def test_kinds(losses: list[float | None], kind: str, log2_value: float | None, bracketed: bool) -> None:
    found = of_one_seed(losses)
    assert (found.kind, found.log2_value, found.bracketed) == (kind, log2_value, bracketed)


def test_interior_needs_a_rise_on_both_sides_of_the_lowest_cell() -> None:
    """Losses that rise from an edge have their optimum at that edge, however steep or bent they are."""
    for losses in ([3.00, 3.07, 3.60, 5.0, 5.4, 5.5], [3.00, 3.02, 3.10, 3.5, 5.0, 5.5]):
        assert of_one_seed(losses, GRID).kind == "lower_edge"
        assert of_one_seed(losses[::-1], GRID).kind == "upper_edge"
    assert of_one_seed([3.02, 3.00, 3.03, 3.19, 3.82, 5.0], GRID).kind == "interior"


def test_too_few_points_say_so() -> None:
    found = of_one_seed([3.0, 2.0, INF, None, INF])
    assert found.open_because == "2 HP values have a finite loss, 3 are needed"
    assert of_one_seed([3.0, None, INF, None, INF]).open_because == "1 HP value has a finite loss, 3 are needed"


def test_a_neighbor_without_a_result_leaves_the_optimum_open() -> None:
    assert of_one_seed([4.0, 3.0, None, 4.0, 5.0]).open_because == "HP 0.25 next to the best one has no result"
    assert of_one_seed([None, 4.0, 3.0, 4.0, 5.0]).bracketed


# So close that none of them may have died: 21 - 5 is less than 1 + DEAD_SHARE times 20 - 5.
@given(
    losses=st.lists(st.floats(20.0, 21.0).map(lambda x: round(x, 6)), min_size=5, max_size=5), shift=st.floats(-5, 5)
)
@settings(deadline=None, max_examples=examples(60))
def test_a_constant_on_all_losses_does_not_move_the_optimum(losses: list[float], shift: float) -> None:
    found, shifted = of_one_seed(losses), of_one_seed([loss + shift for loss in losses])
    tie = sorted(losses)[1] - min(losses) < 1e-9
    assert tie or (shifted.kind, shifted.log2_value) == (found.kind, found.log2_value)


@given(losses=LOSSES, octaves=st.integers(-20, 20))
@settings(deadline=None, max_examples=examples(60))
def test_scaling_the_hp_moves_the_optimum_with_it(losses: list[float], octaves: int) -> None:
    found, moved = of_one_seed(losses), of_one_seed(losses, [x + octaves for x in LOG2])
    assert moved.kind == found.kind
    if found.log2_value is None:
        assert moved.log2_value is None
    else:
        assert moved.log2_value == pytest.approx(found.log2_value + octaves, abs=1e-9)


@given(losses=st.lists(st.one_of(st.floats(1.0, 10.0), st.just(INF), st.none()), min_size=5, max_size=5))
@settings(deadline=None, max_examples=examples(100))
def test_the_optimum_of_the_means_is_the_lowest_measured_cell(losses: list[float | None]) -> None:
    found = of_one_seed(losses)
    if found.grid_value is None:
        lowest = min((loss for loss in losses if loss is not None), default=INF)
        alive = (1 + DEAD_SHARE) * lowest  # what ends higher may have died, and counts as diverged
        assert sum(loss is not None and loss < min(alive, INF) for loss in losses) < 3
        return
    at = LOG2.index(math.log2(found.grid_value))
    assert losses[at] == min(loss for loss in losses if loss is not None)
    assert found.log2_value == LOG2[at]


def test_the_spread_is_over_the_optima_of_single_seeds() -> None:
    frame = line(STAYS, scales=(32.0,), noise=0.0)
    exponent = np.log2(frame["value"])
    frame["loss"] = 3 + 0.1 * (exponent - np.where(frame["seed"] == 0, -6.4, -6.1)) ** 2
    found = of_frame(frame)
    assert (found.log2_value, found.grid_value) == (-6.0, 2.0**-6)
    assert (found.seed_low_log2, found.seed_high_log2) == (pytest.approx(-6.4), pytest.approx(-6.1))


def test_one_seed_has_no_spread() -> None:
    assert of_frame(line(STAYS, scales=(32.0,), seeds=1)).seed_low_log2 is None


def test_a_better_loss_off_the_axis_leaves_the_optimum_open() -> None:
    frame = line(STAYS, scales=(32.0,))
    zero = frame["value"] == 2.0**-9
    frame.loc[zero, "value"] = 0.0
    assert of_frame(frame).bracketed
    frame.loc[zero, "loss"] = 1.0
    assert "HP 0, which a log2 axis cannot show" in str(of_frame(frame).open_because)


def test_the_range_is_that_of_cells_with_a_result() -> None:
    assert range_of(one_seed([None, 4.0, INF, 4.0, None]).row) == (-3.0, -1.0)
    assert range_of(one_seed([None] * 5).row) == (INF, -INF)
