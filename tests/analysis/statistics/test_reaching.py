"""When a curve reaches a loss: closed forms with known crossings, noise, and curves that rise again."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from there import there

from hpxfer.analysis.statistics.reaching import reaches, smoothed

Floats = NDArray[np.float64]
AT = np.arange(1.0, 2001.0)
FORMS: dict[str, Callable[[Floats], Floats]] = {
    "power law": lambda x: 2 + (x / 20) ** -0.35,
    "exponential": lambda x: 2 + 3 * np.exp(-x / 700),
    "line over log steps": lambda x: 8 - 0.5 * np.log2(x),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level_at", [40.0, 333.0, 1900.0])
def test_a_loss_is_reached_where_the_smoothed_closed_form_has_it(form: str, level_at: float) -> None:
    smooth = smoothed(AT, FORMS[form](AT))
    inside = np.linspace(0.9 * level_at, level_at, 2001)[1:]  # the window, which has far more points here
    level = float(FORMS[form](inside).mean())
    assert reaches(AT, smooth, level) == pytest.approx(level_at, rel=0.01, abs=0.6)  # a window has whole steps


@pytest.mark.parametrize("rate", [1.05, 1.5, 3.0, 8.0])
def test_a_curve_that_runs_faster_reaches_every_loss_as_much_earlier(rate: float) -> None:
    slow, fast = FORMS["power law"](AT), FORMS["power law"](rate * AT)
    found = there(reaches(AT, smoothed(AT, fast), float(smoothed(AT, slow)[-1])))
    assert AT[-1] / found == pytest.approx(rate, rel=0.01)


def first_below(at: Floats, losses: Floats, level: float) -> float:
    """Return the first point at or below a level: what reading off a curve by its lowest batch would say."""
    return float(at[np.argmax(losses <= level)])


def test_noise_does_not_count_as_reaching_a_loss() -> None:
    found, naive = [], []
    logged = AT[::8]  # a long run logs few of its steps
    for seed in range(100):
        noise = 0.1 * np.random.default_rng(seed).standard_normal(logged.size)
        slow, fast = FORMS["power law"](logged) + noise, FORMS["power law"](2 * logged) + noise
        level = float(smoothed(logged, slow)[-1])
        found.append(reaches(logged, smoothed(logged, fast), level) or math.inf)
        naive.append(first_below(logged, smoothed(logged, fast), level))
    assert np.median(found) == pytest.approx(1000, rel=0.05)
    assert np.median(naive) < 0.8 * 1000  # the same curves, read off at the first point below the level


def test_a_curve_that_dips_and_ends_above_has_not_reached_the_loss() -> None:
    dips = np.where((AT > 400) & (AT < 700), 2.0, 3.0)
    assert reaches(AT, smoothed(AT, dips), 2.5) is None
    stays = np.where(AT > 400, 2.0, 3.0)
    assert reaches(AT, smoothed(AT, stays), 2.5) == pytest.approx(420, rel=0.06)


def test_a_spike_delays_a_loss_until_the_curve_is_back() -> None:
    losses = FORMS["power law"](AT)
    level = float(losses[500])
    losses[(AT > 800) & (AT < 900)] += 2.0
    found = there(reaches(AT, smoothed(AT, losses), level))
    assert 550 < found <= 1000


def test_a_curve_that_starts_below_has_the_loss_from_its_first_point_on() -> None:
    assert reaches(AT, np.full(AT.size, 2.0), 3.0) == 1.0
    assert reaches(np.array([5.0]), np.array([2.0]), 3.0) == 5.0
    assert reaches(np.array([5.0]), np.array([2.0]), 1.0) is None


def test_smoothed_is_the_mean_over_the_last_tenth_so_far() -> None:
    losses = np.random.default_rng(0).standard_normal(AT.size)
    smooth = smoothed(AT, losses)
    for at in (1, 5, 11, 100, 1999, 2000):
        window = [losses[i] for i in range(AT.size) if 0.9 * at < AT[i] <= at]
        assert smooth[at - 1] == pytest.approx(np.mean(window))
