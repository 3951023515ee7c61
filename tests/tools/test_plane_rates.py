"""The tool that counts what refining two HPs finds, and what it finds in worlds foreign to its fit."""

from __future__ import annotations

import math
from statistics import median

import pytest
from plane_rates import COLUMNS, Setting, find, row_of
from plane_worlds import WORLDS

BY_NAME = {world.name: world for world in WORLDS}
HEAVY = Setting(noise=0.01, heavy=True)
USUAL = Setting(noise=0.01)


@pytest.mark.parametrize("name", ["round", "quartic", "bent valley", "skewed", "4:1, diverges beside", "flat ridge"])
@pytest.mark.parametrize("setting", [USUAL, HEAVY], ids=["normal", "heavy"])
def test_it_gives_up_no_more_than_a_grid_of_as_many_points(name: str, setting: Setting) -> None:
    found = [find(BY_NAME[name], setting, seed) for seed in range(7)]
    assert median(one.regret for one in found) <= median(one.grid_regret for one in found)
    assert max(one.points for one in found) <= setting.points


def test_ridges_are_said_in_ridge_worlds_and_nowhere_else() -> None:
    for world in WORLDS:
        forms = [find(world, USUAL, seed).form for seed in range(4)]
        assert (set(forms) == {"ridge"}) == world.is_ridge, f"{world.name}: {forms}"
        assert world.is_ridge or "ridge" not in forms


def test_the_truth_of_a_world_is_read_off_its_losses() -> None:
    for world in WORLDS:
        lowest, a, b = world.truth
        assert world.regret(a, b) == 0.0
        assert lowest == pytest.approx(3.0, abs=0.002)
    assert BY_NAME["round, diverges beside"].loss(-4.0, 0.0) == math.inf


def test_a_row_has_a_cell_for_every_column() -> None:
    world = BY_NAME["round"]
    assert len(row_of(world, [find(world, USUAL, 0)])) == len(COLUMNS)
