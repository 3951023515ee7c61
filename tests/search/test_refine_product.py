"""Refine with product: two HPs together, ridges, walls, edges, budgets, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from landscape import Landscape, Ran, expansion_of, run

from hpxfer.errors import HpxferError
from hpxfer.search import Outcome
from hpxfer.search.plane import first_values
from hpxfer.search.plane_design import lattice_step
from hpxfer.spec.budget import arm_budget, budget_text
from hpxfer.trial import Expansion, Trial

TWO = ("[0.01]", "{log2: [-9, -4]}\n  init_scale: {log2: [-2, 2]}")
Land = Callable[[Trial], Outcome]


def product(options: str = "", grid: tuple[str, str] = TWO, seeds: int = 2, more: str = "product: true\n") -> Expansion:
    return expansion_of(grid, ("seeds: 2", f"seeds: {seeds}"), search=f"{{kind: refine{options}}}", more=more)


def at_base(ran: Ran) -> list[tuple[float, float]]:
    """Return (log2 lr, log2 init_scale) of the points at the base, in the order in which they were asked for."""
    points = {
        (math.log2(trial.hps.lr), math.log2(trial.hps.init_scale)): None
        for trial in ran.trials.values()
        if trial.shape.width == 32
    }
    return list(points)


def said(ran: Ran) -> list[str]:
    return [line for line in ran.search.why().splitlines() if line.startswith("completep-moe/sp")]


def valley(steep: float, flat: float, angle: float, noise: float = 0.004, wall: float = math.inf) -> Land:
    """Return a turned parabola about (-6.3, 0.6); training diverges where log2 lr + log2 init_scale exceeds a wall."""
    c, s = math.cos(angle), math.sin(angle)

    def land(trial: Trial) -> Outcome:
        a, b = math.log2(trial.hps.lr), math.log2(trial.hps.init_scale)
        if a + b > wall:
            return Outcome("diverged")
        u, v = a + 6.3, b - 0.6
        luck = np.random.default_rng(int(trial.id[:12], 16)).standard_normal()
        return Outcome(
            "finished", 3 + steep * (c * u + s * v) ** 2 / 2 + flat * (c * v - s * u) ** 2 / 2 + noise * luck
        )

    return land


def ended_at(ran: Ran) -> tuple[float, float]:
    """Return the point that the base ended with."""
    text = said(ran)[-1].partition("best lr 2^")[2]
    first, _, rest = text.partition(", init_scale 2^")
    return float(first), float(rest.partition(";")[0])


def test_it_starts_with_nine_values_of_the_grid_and_adds_three_at_a_time() -> None:
    ran = run(product(", at: base"), valley(0.08, 0.05, 0.3))
    points = at_base(ran)
    assert points[:9] == [(a, b) for a in (-9, -7, -4) for b in (-2, 0, 2)]
    assert len(points) % 3 == 0
    assert all(round(at / lattice_step(0.5), 6).is_integer() for point in points for at in point)


@pytest.mark.parametrize(
    ("values", "first"),
    [
        ((0.5,), (0.25, 0.5, 1.0)),
        ((1.0, 4.0), (1.0, 2.0, 4.0)),
        ((1.0, 2.0, 16.0), (1.0, 2.0, 16.0)),
        (tuple(2.0**k for k in range(8)), (1.0, 8.0, 128.0)),
    ],
)
def test_a_line_is_thinned_to_three_values(values: tuple[float, ...], first: tuple[float, ...]) -> None:
    assert first_values(values) == first


@pytest.mark.parametrize("angle", [0.0, 0.6, -0.6])
def test_a_turned_bowl_is_found_to_the_width_that_was_asked_for(angle: float) -> None:
    ran = run(product(", until_octaves: 0.5"), valley(0.08, 0.03, angle))
    a, b = ended_at(ran)
    assert math.hypot(a + 6.3, b - 0.6) <= 0.5
    assert "region" in said(ran)[-1]
    assert "ridge" not in said(ran)[-1]


def test_a_ridge_is_said_with_its_direction() -> None:
    ran = run(product(), valley(0.08, 0.0, math.pi / 4))
    slope = float(said(ran)[-1].partition("a ridge: lr falls by ")[2].partition(" octaves per octave of init_scale")[0])
    assert slope == pytest.approx(1.0, abs=0.1)
    a, b = ended_at(ran)
    assert abs(a + 6.3 + b - 0.6) <= 0.5, "it lies on the ridge"
    beside = run(product(), valley(0.08, 0.0, 0.0))
    assert "the loss hardly depends on init_scale" in said(beside)[-1]


def test_an_optimum_off_the_grid_is_followed() -> None:
    land = Landscape(optima={"lr": -3.1, "init_scale": -3.2}, curvature=0.03, noise=0.004)
    ran = run(product(), land)
    assert any("widened" in line for line in said(ran))
    a, b = ended_at(ran)
    assert math.hypot(a + 3.1, b + 3.2) <= 0.5


def test_the_box_grows_no_farther_than_it_may_and_a_bound_is_said() -> None:
    land = Landscape(optima={"lr": 2.0, "init_scale": 0.0}, curvature=0.03, noise=0.002)
    ran = run(product(", max_octaves: 1"), land)
    assert max(a for a, _ in at_base(ran)) == -3.0
    assert "a bound, not an optimum: the loss still falls towards lr above" in said(ran)[-1]
    held = run(product(", max_octaves: 0"), land)
    assert max(a for a, _ in at_base(held)) == -4.0


def test_points_that_diverged_are_walls() -> None:
    """The optimum lies behind the wall: what is tried comes up to it from the finished side."""
    ran = run(product(), valley(0.08, 0.06, 0.2, wall=-6.5))
    points = at_base(ran)
    finished = [(a, b) for a, b in points if a + b <= -6.5]
    diverged = [(a, b) for a, b in points if a + b > -6.5]
    for number, (a, b) in enumerate(points[9:], start=9):
        known = points[: number - (number % 3)]
        near = [min(math.dist((a, b), one) for one in known if one in which) for which in (finished, diverged)]
        assert near[0] <= near[1] + 1e-6, "no point is tried whose nearest measured one diverged"
    a, b = ended_at(ran)
    assert -7.3 <= a + b <= -6.5, "the best is next to the wall"


def test_where_everything_diverges_lower_values_are_tried() -> None:
    ran = run(product(), valley(0.03, 0.03, 0.0, wall=-11.5))
    assert "everything diverged" in "\n".join(said(ran))
    a, b = ended_at(ran)
    assert a + b <= -11.5


def test_one_seed_is_enough_to_end() -> None:
    ran = run(product(seeds=1), valley(0.08, 0.05, 0.4, noise=0.003))
    a, b = ended_at(ran)
    assert math.hypot(a + 6.3, b - 0.6) <= 0.75


def test_other_shapes_get_the_best_point_of_the_base() -> None:
    ran = run(product(), valley(0.08, 0.05, 0.3))
    best = ended_at(ran)
    wide = {
        (round(math.log2(trial.hps.lr), 3), round(math.log2(trial.hps.init_scale), 3))
        for trial in ran.trials.values()
        if trial.shape.width == 64 and trial.parameterization is not None and trial.parameterization.name == "sp"
    }
    assert best in wide
    assert sum("lr x init_scale from the base" in line for line in ran.search.why().splitlines()) == 4


def test_a_budget_that_is_raised_goes_on_and_loses_nothing() -> None:
    land, known = valley(0.08, 0.02, 0.5, noise=0.01), dict[str, Outcome]()
    for budget in (20, 27, 40, 60):
        ran = run(product(f", budget: {budget}"), land, known=known)
        at_once = run(product(f", budget: {budget}"), land)
        assert frozenset(ran.trials) == frozenset(at_once.trials) - known.keys()
        assert max(at_once.arms().values()) <= budget
        known = ran.outcomes


def test_what_the_rest_of_the_budget_buys_counts_at_the_end() -> None:
    """13 points: nine, three, and one of the next three. The last one is part of what the search ends with."""
    ran = run(product(", budget: 26, at: base, until_octaves: 0.1"), valley(0.08, 0.05, 0.3))
    assert len(at_base(ran)) == 13
    assert "the budget of 26 trials is spent" in "\n".join(said(ran))
    end = run(product(", budget: 24, at: base, until_octaves: 0.1"), valley(0.08, 0.05, 0.3))
    assert said(end)[-1] != said(ran)[-1]


def test_its_trials_have_the_ids_of_a_product_grid() -> None:
    refined = run(product(", at: base"), valley(0.08, 0.05, 0.3))
    box = "{log2: [-9, -4], step: 0.125}\n  init_scale: {log2: [-2, 2], step: 0.125}"
    grid = expansion_of(("[0.01]", box), search="{kind: grid, at: base}", more="product: true\n")
    ids = {trial.id for trial in grid.trials()}
    assert refined.trials.keys() <= ids


def test_the_budget_is_stated_before_anything_runs() -> None:
    spec = product(", max_octaves: 2").spec
    # Nine points, eight rounds of three, a round for each of the four sides that may move, and the base's best point.
    assert arm_budget(spec) == 2 * (9 + 3 * (8 + 4) + 1)
    assert budget_text(spec).startswith("search refine: at most 92 trials for each arm")
    assert max(run(product(", max_octaves: 2"), valley(0.0, 0.0, 0.0, noise=0.3)).arms().values()) <= 92


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        (("[0.01]", "{log2: [-9, -4]}"), "", "grid: must have two HPs to refine with product"),
        ((TWO[0], TWO[1] + "\n  eps: [1e-8, 1e-6]"), "", "6 coefficients over two HPs, and 10 over 3; name the two"),
        (("[0.01]", "[0.01]\n  weight_decay: [0, 0.1]"), "", "weight_decay: must be above zero to be searched"),
        (TWO, ", budget: 19", "must buy three values of each HP and, beside them, the base's best point: at least 20"),
    ],
)
def test_what_it_refuses(grid: tuple[str, str], options: str, message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        product(options, grid)
    assert message in str(caught.value)


def test_no_base_value_is_needed_and_without_product_it_is() -> None:
    assert product().spec.hps.lr is None
    with pytest.raises(HpxferError, match="the line of init_scale runs through it"):
        product(more="")
