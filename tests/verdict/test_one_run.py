"""One run must not decide: wrong runs make no verdict false, and good ones cost no verdict."""

from __future__ import annotations

import math

import numpy as np
import pytest
from foreign_worlds import Noise, World, values
from planted_lines import grid_of
from there import there
from verdict_counts import measure

from hpxfer.verdict.findings import Finding
from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.transfer import find

X = np.arange(-9.0, -3.0)


def losses(optima: tuple[float, ...], seeds: int = 3, noise: float = 0.004, luck: int = 0) -> Floats:
    """Return losses (I, K, S) of parabolas."""
    rng = np.random.default_rng(luck)
    mean_IK = 3 + 0.03 * (X - np.array(optima)[:, None]) ** 2
    return np.asarray(mean_IK[:, :, None] + noise * rng.standard_normal((len(optima), X.size, seeds)))


def only(loss_IKS: Floats) -> Finding:
    (finding,) = find([grid_of(*loss_IKS.tolist(), log2_values=X.tolist())])
    return finding


@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize("noise", [Noise(wrong_nats=(-0.6, -0.1)), Noise(swapped=True)])
def test_one_wrong_run_makes_no_verdict_false(seeds: int, noise: Noise) -> None:
    world = World(name=f"wrong {seeds} {noise.swapped}", noise=noise, seeds=seeds, x=values(5), offsets=(0.0, 0.0, 0.0))
    counts = measure(world, range(12))
    assert (counts.false_transfers, counts.false_drifts) == (0, 0)
    assert counts.decided >= 4


def test_the_only_run_of_a_cell_does_not_decide_and_is_named() -> None:
    """The largest shape has one seed, and one of its runs is too low: its other runs say where the optimum is."""
    loss = losses((-6.2, -6.2, -6.2))
    loss[2, :, 1:] = np.nan
    assert only(loss).verdict == "transfers"
    loss[2, 0, 0] -= 0.5
    wrong = only(loss)
    assert wrong.verdict == "undecided"
    assert "width 3" in there(wrong.rests_on)
    assert wrong.reasons[0].startswith("it rests on one run: ")
    assert there(wrong.rests_on) in wrong.reasons[0]
    assert wrong.to_add


def test_a_drift_that_all_runs_show_stays_said() -> None:
    for seeds in (2, 3):
        for luck in range(4):
            found = only(losses((-7.5, -6.0, -4.5), seeds=seeds, luck=luck))
            assert (found.verdict, found.rests_on) == ("drifts", None)


@pytest.mark.parametrize(
    ("diverged", "verdict"),
    [
        ({(2, 3): 1}, "undecided"),  # one of one, and the next larger HP is finite
        ({(2, 3): 1, (2, 4): 1, (2, 5): 1}, "drifts"),  # the next larger HP diverges too
        ({(1, 3): 1, (2, 3): 1}, "drifts"),  # so does the HP at another shape
    ],
)
def test_divergence_of_the_only_run_of_a_cell_needs_a_neighbor(
    diverged: dict[tuple[int, int], int], verdict: str
) -> None:
    loss = losses((-6.2, -6.2, -6.2), seeds=1)
    for i, k in diverged:
        loss[i, k] = math.inf
    assert only(loss).verdict == verdict


@pytest.mark.parametrize(("num", "seeds", "verdict"), [(1, 2, "undecided"), (2, 2, "drifts"), (2, 3, "drifts")])
def test_divergence_of_a_cell_counts_if_it_does_whichever_run_is_left_out(num: int, seeds: int, verdict: str) -> None:
    loss = losses((-6.2, -6.2, -6.2), seeds=seeds)
    loss[2, 3, :num] = math.inf
    assert only(loss).verdict == verdict


def test_the_weakest_run_leaves_chances_without_it() -> None:
    loss = losses((-6.2, -6.2, -6.2))
    loss[2, :, 1:] = np.nan
    loss[2, 0, 0] -= 0.5
    found = only(loss)
    assert there(found.transfer_chance) > 0.5
    assert there(found.move_chance) < 0.5
