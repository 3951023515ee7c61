"""Noise: of seeds, with their levels and slopes, of seeds that differ by cell, and of those that a trainer ignores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_lines import STAYS, grid_of, line
from planted_parabolas import X, all_of, parabola
from scipy import stats

from hpxfer.intervals import Floats
from hpxfer.verdict.findings import Rules
from hpxfer.verdict.measured import LEVELS, Measured, balanced
from hpxfer.verdict.noise import LEAST, SeedNoise, seed_noise
from hpxfer.verdict.odd_runs import measure
from hpxfer.verdict.report import TransferReport, report_line

RISES = 0.02 * (np.arange(7.0) - 3.1) ** 2


def losses(
    noise: float, *, shapes: int = 4, seeds: int = 3, level: float = 0.0, slope: float = 0.0, luck: int = 0
) -> Floats:
    """Return losses of shapes, (I, K, S), of a parabola with the noise of seeds."""
    rng = np.random.default_rng(luck)
    u = np.arange(7.0)[:, None] - 3
    found = 3 + RISES[:, None] + noise * rng.standard_normal((shapes, 7, seeds))
    found = found + level * rng.standard_normal((shapes, 1, seeds))
    return np.asarray(found + slope * rng.standard_normal((shapes, 1, seeds)) * u)


def noise_of(loss_IKS: Floats) -> SeedNoise | None:
    return rows_of(measure(grid_of(*loss_IKS.tolist()).rows))[0]


def rows_of(rows: Sequence[Measured]) -> tuple[SeedNoise | None, tuple[Measured, ...]]:
    log = [math.log2(measured.row.scale) for measured in rows]
    return seed_noise(
        rows, {"width": {i: (x - min(log)) / ((max(log) - min(log)) or 1) - 0.5 for i, x in enumerate(log)}}
    )


def known(loss_IKS: Floats) -> SeedNoise:
    noise = noise_of(loss_IKS)
    assert noise is not None
    return noise


def median_sd(found: Sequence[SeedNoise]) -> float:
    return float(np.median([noise.sd for noise in found]))


@pytest.mark.slow
def test_the_noise_is_the_planted_one_whatever_the_levels_of_the_seeds() -> None:
    calm, lucky = ([known(losses(0.01, level=level, luck=i)) for i in range(40)] for level in (0.0, 0.5))
    assert median_sd(calm) == pytest.approx(0.01, rel=0.1)
    assert [noise.sd for noise in lucky] == pytest.approx([noise.sd for noise in calm], rel=0.05)


def test_a_slope_of_a_seed_is_told_from_the_noise_of_its_trials() -> None:
    """Half of the published seeds' luck is a slope in log2 LR."""
    found = [known(losses(0.005, shapes=6, slope=0.015, luck=i)) for i in range(30)]
    slopes = [math.sqrt(noise.slope_variance) for noise in found]
    assert np.median(slopes) == pytest.approx(0.015, rel=0.3)
    assert median_sd(found) == pytest.approx(0.005, rel=0.3)
    without = [known(losses(0.005, shapes=6, luck=i)) for i in range(30)]
    assert np.median([noise.slope_variance for noise in without]) < 0.05 * np.median(slopes) ** 2


@pytest.mark.parametrize("octaves", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_error_of_a_difference_is_that_of_a_simulation(seeds: int, octaves: float) -> None:
    rng = np.random.default_rng(0)
    noise = SeedNoise(variance=0.01**2, slope_variance=0.004**2, freedom=10.0, trial_freedom=10.0)
    slope = 0.004 * rng.standard_normal((40_000, seeds))
    trials = 0.01 * rng.standard_normal((2, 40_000, seeds))
    difference = (trials[0] - trials[1] + slope * octaves).mean(axis=1)
    measured = all_of(parabola(shapes=1, seeds=seeds))[0]
    assert noise.cells_se(measured, 1, 1 + int(octaves)) == pytest.approx(float(difference.std()), rel=0.02)


def test_a_cell_compared_with_itself_has_the_error_of_a_comparison() -> None:
    noise = SeedNoise(variance=0.01**2, slope_variance=1.0, freedom=10.0, trial_freedom=10.0)
    assert noise.cells_se(all_of(parabola(shapes=1, seeds=4))[0], 3, 3) == pytest.approx(0.01 * math.sqrt(0.5))


def test_one_seed_has_no_noise() -> None:
    assert noise_of(losses(0.01, seeds=1)) is None
    assert seed_noise([], {}) == (None, ())
    assert noise_of(np.full((2, 7, 3), np.inf)) is None
    lone = losses(0.01)
    lone[:, :, 1:] = np.nan
    assert noise_of(lone) is None


def test_seeds_that_agree_to_the_last_digit_have_the_least_noise() -> None:
    noise = known(losses(0.0))
    assert noise.sd == pytest.approx(LEAST, rel=1e-6)


def test_a_diverged_seed_and_a_spike_add_no_noise() -> None:
    whole = losses(0.01)
    for bad in (math.inf, 3.9, 1e9):
        changed = whole.copy()
        changed[1, 3, 0] = bad
        assert known(changed).sd == pytest.approx(known(whole).sd, rel=0.25)
    assert float(np.nanstd(np.where(changed > 10, np.nan, changed), axis=2).mean()) > 0  # the seeds do differ


def test_degrees_of_freedom_count_what_levels_and_means_leave() -> None:
    """Of the 15 losses near an optimum, means and levels take 5 + 2. Slopes have at most a degree per later seed."""
    freedom = [known(losses(0.01, shapes=4, luck=i)).freedom for i in range(20)]
    assert min(freedom) > 4 * 2
    assert max(freedom) <= 4 * (15 - 7) + 4 * 2  # Satterthwaite's bound: both together
    slopes = known(losses(1e-5, shapes=4, slope=0.02))
    assert 2 <= slopes.freedom <= 4 * 2 * 1.05  # the slopes move the optimum, not the noise of the many trials


@pytest.mark.slow
def test_an_interval_by_its_freedom_covers() -> None:
    """Student's t of the difference of two cell means, as a simulation has it. The negative twin is a normal law."""
    covered = {"t": 0, "normal": 0}
    for i in range(200):
        found = losses(0.01, shapes=1, seeds=2, luck=i)
        noise = known(found)
        difference = float(found[0, 3].mean() - found[0, 4].mean() - RISES[3] + RISES[4])
        se = noise.cells_se(measure(grid_of(*found.tolist()).rows)[0], 3, 4)
        covered["t"] += abs(difference) <= se * stats.t.ppf(0.975, noise.freedom)
        covered["normal"] += abs(difference) <= se * stats.norm.ppf(0.975)
    assert covered["t"] >= 0.92 * 200
    assert covered["normal"] < 0.92 * 200


@given(constant=st.floats(-5, 5), power=st.integers(-3, 3))
def test_a_shift_changes_no_noise_and_a_scale_scales_it(constant: float, power: int) -> None:
    found = losses(0.01)
    whole, shifted, scaled = known(found), known(found + constant), known(found * 2.0**power)
    assert shifted.sd == pytest.approx(whole.sd, rel=1e-6)
    assert shifted.slope_variance == pytest.approx(whole.slope_variance, rel=1e-6)
    assert scaled.sd == pytest.approx(whole.sd * 2.0**power, rel=1e-9)
    assert scaled.freedom == pytest.approx(whole.freedom, rel=1e-9)


def test_the_order_of_shapes_does_not_matter() -> None:
    rows = measure(grid_of(*losses(0.01).tolist()).rows)
    (one, forward), (other, backward) = rows_of(rows), rows_of(rows[::-1])
    assert one is not None
    assert other is not None
    assert one.sd == pytest.approx(other.sd, rel=1e-9)
    assert [m.noise_ratio for m in forward] == pytest.approx([m.noise_ratio for m in backward][::-1], rel=1e-9)


@pytest.mark.first
@pytest.mark.parametrize("factor", [1 / 15, 0.2, 5.0, 15.0])
@pytest.mark.parametrize("seeds", [2, 3])
def test_noise_follows_the_size_of_shapes(factor: float, seeds: int) -> None:
    """Scales are 1 to 4. The negative twin: noise that does not change with size has a ratio near 1."""
    place = np.log(np.arange(1.0, 5.0)) / math.log(4)
    found, flat = [], []
    for luck in range(20):
        loss = losses(0.01, seeds=seeds, luck=luck)
        away = loss - 3 - RISES[:, None]
        grown = 3 + RISES[:, None] + away * (factor**place)[:, None, None]
        for to, planted in ((found, grown), (flat, loss)):
            noise, rows = rows_of(measure(grid_of(*planted.tolist()).rows))
            assert noise is not None
            to.append([noise.at(m).sd for m in rows])
    assert np.median(found, axis=0) == pytest.approx(0.01 * factor**place, rel=0.35)
    assert np.median(flat, axis=0) == pytest.approx([0.01] * 4, rel=0.25)


def test_cells_far_up_a_wall_and_in_doubt_add_no_noise() -> None:
    """Noise is that of the neighborhood of the optimum."""
    whole = losses(0.01, shapes=3)
    for k, level in ((5, 0.4), (6, 3.0)):
        rough = whole.copy()
        rough[:, k:] += level + 0.3 * np.random.default_rng(1).standard_normal(rough[:, k:].shape)
        assert known(rough).sd == pytest.approx(known(whole).sd, rel=0.4)


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


def planted_levels(design: Design, move: float, luck: int) -> pd.DataFrame:
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
            (found,) = report_line(planted_levels(DESIGNS[name], move, luck), sweep="planted", hp="lr").findings
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


RULES = Rules(seeds_differ=True)


def judged(frame: pd.DataFrame, rules: Rules = RULES) -> TransferReport:
    return report_line(frame, sweep="planted", hp="lr", rules=rules)


def same_at(frame: pd.DataFrame, cells: pd.Series) -> pd.DataFrame:
    """Return the line with the losses of the first seed for all seeds of some cells."""
    out = frame.copy()
    keys = ["axis", "parameterization", "scale", "value"]
    first = out.groupby(keys)["loss"].transform("first")
    out.loc[cells, "loss"] = first[cells]
    return out


@pytest.fixture(scope="module")
def plain() -> pd.DataFrame:
    return line(STAYS)


def test_seeds_that_differ_are_judged(plain: pd.DataFrame) -> None:
    (finding,) = judged(plain).findings
    assert (finding.verdict, finding.doubts) == ("transfers", ())


def test_a_shape_whose_seeds_are_ignored_is_refused(plain: pd.DataFrame) -> None:
    largest = plain["scale"] == plain["scale"].max()
    report = judged(same_at(plain, largest))
    (finding,) = report.findings
    assert finding.verdict == "undecided"
    assert "ignores its seed" in finding.reasons[0]
    assert finding.transfer_chance is None
    assert "mend the trainer first" in report.headline
    assert "is undecided" in report.headline
    # Without the rule, as for the built-in trainer, equal losses say nothing against the trainer.
    assert judged(same_at(plain, largest), Rules()).findings[0].doubts == ()


def test_a_tie_by_chance_says_nothing(plain: pd.DataFrame) -> None:
    one = (plain["scale"] == plain["scale"].max()) & (plain["value"] == plain["value"].max())
    assert judged(same_at(plain, one)).findings[0].doubts == ()


def test_noise_beyond_seeds_is_added_to_that_of_seeds(plain: pd.DataFrame) -> None:
    (finding,), (wider,) = judged(plain).findings, judged(plain, Rules(extra_sd=0.01)).findings
    assert finding.noise_nats is not None
    assert wider.noise_nats == pytest.approx(np.hypot(finding.noise_nats, 0.01))


def test_doubts_of_the_rules_come_first_in_every_verdict(plain: pd.DataFrame) -> None:
    report = judged(plain, Rules(doubts=("seeds: two seeds have the same loss",)))
    (finding,) = report.findings
    assert (finding.verdict, finding.reasons[0]) == ("undecided", "seeds: two seeds have the same loss")
    assert report.to_dict()["findings"][0]["verdict"] == "undecided"
