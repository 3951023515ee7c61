"""The stability map: shares, edges and their distance from optima, read off planted cliffs."""

from __future__ import annotations

import pandas as pd
import pytest
from planted_lines import STAYS, line, with_status

from hpxfer.analysis import report_line
from hpxfer.analysis.statistics.stability import StabilityMap, stability_map
from hpxfer.verdict.loss_grid import loss_grids


def made(frame: pd.DataFrame) -> StabilityMap:
    report = report_line(frame, sweep="planted", hp="lr")
    return stability_map(*loss_grids(frame), report.findings[0], "lr")


def test_a_cliff_is_where_it_was_planted_and_its_drift_with_the_optimum() -> None:
    stays = made(line(STAYS, diverges_above=1.5))
    assert stays.edges_log2 == (-5.0, -5.0, -5.0)
    assert stays.edge_octaves_per_doubling == pytest.approx(0.0, abs=1e-9)
    assert stays.distance_octaves == pytest.approx((1.2, 1.2, 1.2), abs=0.15)
    moves = made(line({"sp": lambda doublings: -5.2 - doublings}, diverges_above=1.5))
    assert moves.edges_log2[1:] == (-5.0, -6.0)
    assert moves.edge_octaves_per_doubling == pytest.approx(-1.0)


def test_shares_are_of_seeds_with_a_result() -> None:
    frame = with_status(line(STAYS, seeds=3), "diverged", scale=64.0, value=2.0**-4, seed=0)
    frame = with_status(frame, "missing", scale=64.0, value=2.0**-4, seed=1)
    frame = with_status(frame, "missing", scale=64.0, value=2.0**-5)
    found = made(frame)
    assert found.values == tuple(2.0**x for x in range(-9, -3))
    assert found.diverged_share[1] == (0.0, 0.0, 0.0, 0.0, None, 0.5)
    assert found.losses[1][4:] == (None, None)
    assert found.diverged_share[0] == (0.0,) * 6


def test_no_divergence_has_no_edge_and_all_diverged_no_stable_hp() -> None:
    assert made(line(STAYS)).edges_log2 == (None, None, None)
    lost = made(with_status(line(STAYS), "diverged", scale=128.0))
    assert (lost.all_diverge, lost.edges_log2[2]) == ((False, False, True), None)
    empty = line(STAYS)
    assert made(empty.assign(status="missing", loss=float("nan"))).why_not == "no trial of this line has a result"
