"""What to add: the words, and that adding it decides."""

from __future__ import annotations

import pandas as pd
import pytest
from planted_lines import STAYS, Optima, line, with_status

from hpxfer.analysis import Finding
from hpxfer.verdict.loss_grid import loss_grids
from hpxfer.verdict.transfer import find
from hpxfer.verdict.what_to_add import _seeds

NARROW: Optima = {"completep-moe": lambda _: -6.2}


def finding(frame: pd.DataFrame) -> Finding:
    """Return the finding by itself: not yet held against a control, which would be asked for too."""
    return find(loss_grids(frame))[0]


def test_a_base_on_the_edge_asks_for_values_beyond_it() -> None:
    found = finding(line({"sp": lambda _: -10.0}))
    assert found.to_add[0].text == "width 32: HP values 2^-11, 2^-10"
    assert found.to_add[0].values == (2.0**-11, 2.0**-10)
    assert found.to_add[0].scales == (32.0,)
    assert f"to decide: {found.to_add[0].text}" in found.reasons
    wider = finding(line({"sp": lambda _: -10.0}, grid=range(-13, -3)))
    assert wider.verdict == "transfers"


def test_a_missing_cell_is_named() -> None:
    found = finding(with_status(line(STAYS), "missing", scale=64.0, value=2.0**-6))
    assert found.to_add[0].text == "width 64: run what has no result (0.01562)"
    assert found.to_add[0].values == (2.0**-6,)


@pytest.mark.parametrize(
    ("frame", "values"),
    [
        (line(STAYS, grid=(-6.0,)), (2.0**-7, 2.0**-5)),
        (line(STAYS, grid=(-6.0, -4.0)), (2.0**-8, 2.0**-2)),
        (with_status(line(STAYS), "diverged"), (2.0**-12, 2.0**-11, 2.0**-10)),
        (line(STAYS, grid=range(-7, -3), diverges_above=0.5), (2.0**-8,)),
    ],
)
def test_too_few_points_for_a_parabola_ask_for_more(frame: pd.DataFrame, values: tuple[float, ...]) -> None:
    """Below what diverges; else on both sides."""
    found = finding(frame)
    assert found.verdict == "undecided"
    assert [more.values for more in found.to_add] == [values] * 3


def test_one_seed_asks_for_three() -> None:
    found = finding(line(STAYS, seeds=1))
    assert [(addition.text, addition.seeds) for addition in found.to_add] == [("3 seeds at every shape", 3)]


def test_noise_asks_for_as_many_seeds_as_decide() -> None:
    noise = 0.08
    found = finding(line(STAYS, noise=noise, seeds=2))
    assert found.verdict == "undecided"
    (more,) = found.to_add
    assert more.seeds is not None
    assert 3 <= more.seeds <= 20
    assert finding(line(STAYS, noise=noise, seeds=more.seeds + 3)).verdict == "transfers"


def test_a_move_at_its_limit_asks_for_a_longer_axis() -> None:
    found = finding(line({"sp": lambda doublings: -6.0 - 0.5 * doublings}, curvature=0.004, noise=2e-4, seeds=3))
    assert found.verdict == "undecided"
    assert found.to_add[0].text.startswith("a shape at twice the largest width")


def test_a_single_shape_asks_for_another() -> None:
    frame = line(STAYS)
    assert finding(frame[frame["is_base"]]).to_add[0].text.startswith("a shape beyond the base")


@pytest.mark.parametrize("frame", [line(STAYS), line({"sp": lambda doublings: -6.2 - doublings})])
def test_what_is_decided_asks_for_nothing(frame: pd.DataFrame) -> None:
    assert finding(frame).to_add == ()


def test_an_unfinished_sweep_is_finished_before_seeds_are_counted() -> None:
    frame = with_status(line(STAYS, noise=0.08), "missing", scale=32.0, value=2.0**-7)
    found = finding(with_status(frame, "missing", scale=64.0, value=2.0**-6))
    assert [addition.text for addition in found.to_add] == [
        "width 32: run what has no result (0.007812)",
        "width 64: run what has no result (0.01562)",
    ]
    assert _seeds(found) is not None  # it could be told, but from too little


def test_losses_that_do_not_bend_ask_for_seeds() -> None:
    found = finding(line(STAYS, curvature=0.0, noise=0.05))
    assert "does not bend" in str(found.reasons)
    assert found.to_add[-1].seeds == 4
