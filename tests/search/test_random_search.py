"""Random search: a box, log-uniform, one sequence for all arms, which a larger budget extends."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from landscape import LR, Landscape, expansion_of, run

from hpxfer.scaling.hps import HPs
from hpxfer.search.random_search import random_points
from hpxfer.spec import SweepSpec

BOX = ("[0.01]", "{log2: [-9, -4]}\n  init_scale: [0.5, 8]\n  router.lr_mult: [0.25]")


def spec_of(search: str) -> SweepSpec:
    return expansion_of(BOX, search=search).spec


def first(search: str, count: int) -> list[HPs]:
    return list(random_points(spec_of(search), count))


@pytest.mark.parametrize("sequence", ["sobol", "uniform"])
def test_fewer_points_are_the_first_of_more(sequence: str) -> None:
    search = f"{{kind: random, points: 1, sequence: {sequence}}}"
    longest = first(search, 37)
    assert all(first(search, count) == longest[:count] for count in (1, 2, 3, 8, 16, 17, 36))
    assert len(set(longest)) == 37


@pytest.mark.parametrize("sequence", ["sobol", "uniform"])
def test_points_fill_the_box_evenly_on_a_log_scale(sequence: str) -> None:
    points = first(f"{{kind: random, points: 1, sequence: {sequence}}}", 512)
    for name, low, high in (("lr", -9, -4), ("init_scale", -1, 3)):
        at = (np.log2([point.get(name) for point in points]) - low) / (high - low)
        assert at.min() >= 0
        assert at.max() <= 1
        # 99.9% point of Kolmogorov's statistic for a uniform sample.
        assert np.abs(np.sort(at) - (np.arange(512) + 0.5) / 512).max() < 1.95 / math.sqrt(512)
    assert {point.get("router.lr_mult") for point in points} == {0.25}


def test_sobol_is_more_even_than_chance() -> None:
    """Of 256 Sobol points each of 16 x 16 cells holds one; of uniform ones a third would be empty."""

    def empty(sequence: str) -> int:
        points = first(f"{{kind: random, points: 1, sequence: {sequence}}}", 256)
        cells = {
            (int((math.log2(point.lr) + 9) / 5 * 16), int((math.log2(point.init_scale) + 1) / 4 * 16))
            for point in points
        }
        return 256 - len(cells)

    assert empty("sobol") <= 2  # a point next to a border may be rounded over it
    assert empty("uniform") > 60


def test_the_seed_of_the_search_chooses_the_points() -> None:
    kinds = [first(f"{{kind: random, points: 4, seed: {seed}}}", 4) for seed in (0, 0, 1)]
    assert kinds[0] == kinds[1]
    assert not set(kinds[0]) & set(kinds[2])


def test_values_have_six_digits() -> None:
    """So that another machine, whose library rounds otherwise, gets the same ids."""
    for point in first("{kind: random, points: 64}", 64):
        assert float(f"{point.lr:.6g}") == point.lr


def test_every_arm_gets_the_same_points_and_the_same_number() -> None:
    ran = run(expansion_of(LR, search="{kind: random, budget: 17}"), Landscape(optima={"lr": -6}))
    assert set(ran.arms().values()) == {16}, "17 trials buy 8 points with 2 seeds"
    assert ran.values("lr", 32) == ran.values("lr", 64)


def test_it_finds_a_planted_optimum() -> None:
    ran = run(expansion_of(LR, search="{kind: random, points: 64}"), Landscape(optima={"lr": -6.3}))
    found = min(ran.trials.values(), key=lambda trial: ran.outcomes[trial.id].value)
    assert abs(math.log2(found.hps.lr) + 6.3) < 5 / 64
    assert "best at lr 0.012" in ran.search.why()


def test_a_point_of_which_a_seed_diverged_is_not_the_best() -> None:
    def landscape(trial):  # type: ignore[no-untyped-def]
        wall = -5.0 if trial.seed else -7.0
        return Landscape(optima={"lr": -6.0}, walls={"lr": wall})(trial)

    ran = run(expansion_of(LR, search="{kind: random, points: 32}"), landscape)
    best = ran.search.why().splitlines()[1].partition("best at lr ")[2]
    assert math.log2(float(best)) <= -7.0
    assert any(math.log2(value) > -7.0 for value in itertools.chain(ran.values("lr")))
