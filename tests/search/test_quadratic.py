"""The surface through the losses of two HPs, its lowest point with a region, and its form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpxfer.search.bowl import bowl_of
from hpxfer.search.quadratic import TOLERANCE, Floats, Quadratic, fit_quadratic, terms

CENTER = np.array([-6.0, 0.5])
GRID = np.array([(a, b) for a in (-8.0, -7.0, -6.0, -5.0, -4.0) for b in (-1.5, -0.5, 0.5, 1.5, 2.5)])


def losses_of(
    x: Floats, steep: float, flat: float, angle: float = 0.0, *, noise: float = 0.0, seeds: int = 2, luck: int = 0
) -> Floats:
    """Return the losses (P, S) of a parabola about CENTER, whose steep direction is turned by an angle."""
    c, s = math.cos(angle), math.sin(angle)
    u, v = (x - CENTER).T
    mean = 3.0 + steep * (c * u + s * v) ** 2 / 2 + flat * (c * v - s * u) ** 2 / 2
    return np.asarray(mean[:, None] + noise * np.random.default_rng(luck).standard_normal((len(x), seeds)))


def fit(x: Floats, losses: Floats) -> Quadratic:
    found = fit_quadratic(x, losses)
    assert found is not None
    return found


def test_a_parabola_is_found_exactly() -> None:
    found = fit(GRID, losses_of(GRID, 0.08, 0.03, 0.4))
    bowl = bowl_of(found)
    assert bowl.at is not None
    np.testing.assert_allclose(bowl.at, CENTER, atol=1e-6)
    np.testing.assert_allclose(bowl.curvatures, (0.08, 0.03), atol=1e-6)
    np.testing.assert_allclose(bowl.steep, (math.cos(0.4), math.sin(0.4)), atol=1e-6)
    np.testing.assert_allclose(found.at(CENTER), 3.0, atol=1e-9)
    np.testing.assert_allclose(found.slope(CENTER), 0.0, atol=1e-8)
    assert found.misfit_nats == 0.0


@pytest.mark.parametrize("x", [GRID[:5], GRID[:10], np.array([(a, a) for a in range(9)], dtype=float)])
def test_points_that_determine_no_surface_have_none(x: Floats) -> None:
    assert fit_quadratic(x, losses_of(x, 0.08, 0.03)) is None


def test_a_seed_that_shifts_all_points_alike_is_no_noise() -> None:
    losses = losses_of(GRID, 0.08, 0.03, noise=0.005, seeds=3)
    shifted = fit(GRID, losses + np.array([0.0, 0.5, -0.3]))
    alone = fit(GRID, losses)
    assert shifted.noise_nats == pytest.approx(alone.noise_nats)
    np.testing.assert_allclose(bowl_of(shifted).at, bowl_of(alone).at, atol=1e-6)


def test_the_noise_of_a_mean_falls_with_the_seeds() -> None:
    for seeds in (2, 4, 16):
        found = [fit(GRID, losses_of(GRID, 0.08, 0.03, noise=0.01, seeds=seeds, luck=luck)) for luck in range(20)]
        assert np.mean([one.noise_nats for one in found]) == pytest.approx(0.01 / math.sqrt(seeds), rel=0.15)


def test_a_trial_far_off_moves_the_optimum_little() -> None:
    losses = losses_of(GRID, 0.08, 0.05, noise=0.003, seeds=3)
    losses[12, 1] += 0.3  # at the optimum itself
    moved = bowl_of(fit(GRID, losses)).at
    assert moved is not None
    assert np.abs(moved - CENTER).max() < 0.25


def test_where_a_parabola_does_not_fit_it_becomes_local() -> None:
    u = GRID - CENTER
    quartic = 3.0 + 0.03 * u[:, 0] ** 2 + 0.03 * u[:, 1] ** 2 + 0.03 * u[:, 0] ** 4
    noise = 0.002 * np.random.default_rng(1).standard_normal((len(GRID), 3))
    assert fit(GRID, quartic[:, None] + noise).tolerance > 1.5 * TOLERANCE[0]
    assert fit(GRID, losses_of(GRID, 0.06, 0.06, noise=0.002, seeds=3)).tolerance == TOLERANCE[0]


def test_the_region_holds_the_optimum_as_often_as_it_says() -> None:
    """A parabola and normal noise: 95% in the long run, of 200 at least 90%. The tolerance only widens it."""
    held = []
    for luck in range(200):
        bowl = bowl_of(fit(GRID, losses_of(GRID, 0.08, 0.03, 0.7, noise=0.01, seeds=3, luck=luck)))
        assert bowl.at is not None
        assert bowl.covariance is not None
        away = bowl.at - CENTER
        held.append(away @ np.linalg.solve(bowl.covariance, away) <= bowl.reach**2)
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize("angle", [0.0, 0.5, math.pi / 2, 2.4])
def test_a_flat_direction_is_a_ridge_and_a_round_bowl_is_none(angle: float) -> None:
    ridge = bowl_of(fit(GRID, losses_of(GRID, 0.08, 0.0, angle, noise=0.004, seeds=3)))
    assert ridge.form == "ridge"
    along = np.array([-math.sin(angle), math.cos(angle)])
    assert abs(float(ridge.flat @ along)) == pytest.approx(1.0, abs=0.02)
    assert ridge.half_widths[0] is not None
    bowl = bowl_of(fit(GRID, losses_of(GRID, 0.08, 0.06, angle, noise=0.004, seeds=3)))
    assert bowl.form == "bowl"
    assert bowl.is_known_to(1.0)
    assert not bowl.is_known_to(1e-3)


def test_noise_that_hides_everything_is_neither() -> None:
    lost = bowl_of(fit(GRID, losses_of(GRID, 0.002, 0.002, noise=0.1)))
    assert lost.form == "unknown"
    assert not lost.is_known_to(100.0)


def test_a_saddle_has_no_lowest_point() -> None:
    saddle = bowl_of(fit(GRID, losses_of(GRID, 0.08, -0.08, noise=0.001)))
    assert saddle.at is None
    assert saddle.covariance is None


def test_terms_are_those_of_a_quadratic() -> None:
    np.testing.assert_array_equal(terms(np.array([2.0, 3.0])), [1, 2, 3, 4, 6, 9])
