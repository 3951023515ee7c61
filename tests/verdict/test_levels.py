"""Seeds that differ from cell to cell: levels of seeds neither make an optimum nor hide one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from planted_parabolas import X, all_of, parabola

from hpxfer.analysis import report_line
from hpxfer.verdict.levels import LEVELS, balanced
from hpxfer.verdict.loss_grid import Floats

SCALES, NOISE, LEVEL = (64.0, 128.0, 256.0, 512.0), 0.004, 0.008
Design = Callable[[int, int, np.random.Generator], list[int]]  # shape, HP -> seeds
DESIGNS: dict[str, Design] = {
    "low HPs with three seeds, high HPs with three others": lambda _, k, rng: [0, 1, 2] if k < 4 else [3, 4, 5],
    "so at the largest shape alone": lambda i, k, rng: [3, 4, 5] if i == 3 and k >= 4 else [0, 1, 2],
    "new seeds for every run": lambda i, k, rng: rng.integers(2**31, size=3).tolist(),
    "one of three seeds, and all of them at three HPs of the base": lambda i, k, rng: (
        [0, 1, 2] if i == 0 and 2 <= k <= 4 else [int(rng.integers(3))]
    ),
    "one of five seeds, and two of them at two HPs": lambda i, k, rng: (
        [0, 1] if i == 1 and k in (3, 4) else [int(rng.integers(5))]
    ),
    "other seeds at every second HP": lambda _, k, rng: [0, 1, 2] if k % 2 else [3, 4, 5],
    "one seed, and three new ones near the optimum": lambda _, k, rng: [1, 2, 3] if 2 <= k <= 5 else [0],
}


def planted(design: Design, move: float, luck: int) -> pd.DataFrame:
    """Return a line whose optimum moves by so many octaves over the shapes. Each seed has a level at each shape."""
    rng = np.random.default_rng(luck)
    rows = []
    for i, scale in enumerate(SCALES):
        level: dict[int, float] = {}
        for k, exponent in enumerate(range(-10, -2)):
            for seed in design(i, k, rng):
                off = exponent + 6.3 - move * i / 3
                loss = 3.0 - 0.1 * i + 0.02 * off**2 + NOISE * rng.standard_normal()
                loss += level.setdefault(seed, LEVEL * rng.standard_normal())
                run = {"value": 2.0**exponent, "seed": seed, "loss": loss, "scale": scale, "is_base": i == 0}
                rows.append({**run, "axis": "width", "scale_name": "width", "shape": f"w{scale:g}"})
    return pd.DataFrame(rows).assign(parameterization="mup", status="finished")


@pytest.mark.first
@pytest.mark.parametrize("name", DESIGNS)
def test_no_choice_of_seeds_makes_a_verdict_false(name: str) -> None:
    for luck in range(4):
        for move, false in ((0.0, ("drifts",)), (1.6, ("transfers", "stays"))):
            (found,) = report_line(planted(DESIGNS[name], move, luck), sweep="planted", hp="lr").findings
            assert found.verdict not in false
            assert found.noise_nats is not None
            assert {shape.num_seeds for shape in found.shapes} <= {1, 2, 3}


@pytest.mark.parametrize("missing", [0, 1, 6])
def test_the_means_are_those_of_least_squares_by_the_covariance(missing: int) -> None:
    rng = np.random.default_rng(missing)
    loss = rng.standard_normal((5, 4))
    loss.flat[rng.permutation(20)[:missing]] = np.nan
    cell, seed = np.nonzero(np.isfinite(loss))
    design = (cell[:, None] == np.arange(5)).astype(float)
    for r, ratio in enumerate(LEVELS):
        inverse = np.linalg.inv(np.eye(cell.size) + ratio * (seed[:, None] == seed))
        covariance = np.linalg.inv(design.T @ inverse @ design)
        mean_RC, share_RC, _ = balanced(loss, np.full(4, True))
        assert mean_RC[r] == pytest.approx(covariance @ design.T @ inverse @ loss[cell, seed], abs=1e-9)
        for a, b in zip(*np.triu_indices(5, 1), strict=True):
            of_difference = covariance[a, a] + covariance[b, b] - 2 * covariance[a, b]
            assert share_RC[r, a] + share_RC[r, b] >= of_difference - 1e-9
    if not missing:
        assert share_RC == pytest.approx(np.full((LEVELS.size, 5), 1 / 4))
        assert mean_RC == pytest.approx(np.tile(loss.mean(axis=1), (LEVELS.size, 1)))


def test_levels_without_a_variance_move_parts_that_no_seed_links() -> None:
    """The negative twin: one free level per seed, by least squares of the smallest norm."""
    loss = np.full((6, 4), np.nan)
    loss[:3, :2], loss[3:, 2:] = 3.0, 2.0
    cell, seed = np.nonzero(np.isfinite(loss))
    design = np.concatenate([cell[:, None] == np.arange(6), seed[:, None] == np.arange(4)], axis=1).astype(float)
    free = np.linalg.lstsq(design, loss[cell, seed], rcond=None)[0][:6]
    assert abs(free[0] - free[3] - 1.0) > 0.3
    mean_RC, share_RC, _ = balanced(loss, np.full(4, True))
    assert mean_RC == pytest.approx(np.tile([3.0] * 3 + [2.0] * 3, (LEVELS.size, 1)))
    assert share_RC[-1].min() > 1e3  # the parts are known to the levels alone


def test_a_missing_run_of_a_high_seed_moves_no_mean() -> None:
    loss: Floats = parabola(seeds=3)
    loss[:, :, 2] += 0.5  # the level of the third seed
    whole = all_of(loss)[1].mean_K
    loss[1, 3, 2] = np.nan
    found = all_of(loss)[1]
    assert found.mean_K == pytest.approx(whole, abs=0.02)
    alone = replace(found, log_levels_R=np.where(LEVELS == 0, 0.0, -99.0))  # the twin that knows of no levels
    assert alone.mean_K[3] < whole[3] - 0.1
    assert found.mean_K.size == len(X)
