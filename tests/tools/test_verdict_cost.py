"""The tool that measures what a verdict costs counts what it says it counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from foreign_worlds import World, values
from verdict_cost import draw_paths, jobs, text_of
from verdict_cost_cases import planted_flops, published_cases, world_case
from verdict_cost_measure import RULES, Cost, cost_of, play, row_of
from verdict_cost_paths import MOST, grid_flops, mean_paths, three_paths

from hpxfer.search.verdict_lines import all_flops

pytestmark = pytest.mark.slow

STAYS = World(name="stays", x=values(6, middle=-6.5))
DRIFTS = World(name="drifts", x=values(6, middle=-6.5), offsets=(0.0, 1.0, 2.0, 3.0))


@pytest.fixture(scope="module")
def costs() -> list[Cost]:
    return [cost_of(world_case(world, seed)) for world in (STAYS, DRIFTS) for seed in range(2)]


def test_clear_worlds_are_decided_rightly_for_less_than_the_grid(costs: list[Cost]) -> None:
    assert [cost.of_grid[0] for cost in costs] == ["transfers", "transfers", "drifts", "drifts"]
    assert all(cost.same and cost.share < 0.7 for cost in costs)
    assert not any(cost.grid_is_wrong or cost.search_is_wrong for cost in costs)
    assert [cost.of_search[1] is None for cost in costs] == [False, False, True, True]


def test_both_arms_are_counted_and_the_base_once() -> None:
    case = world_case(STAYS, 0)
    flops = all_flops(case.lines)
    assert len(flops) == 6 * 3 * (1 + 2 * 3)
    assert sum(flops.values()) == pytest.approx(grid_flops(STAYS, 2))
    assert planted_flops(4)[3] > 20 * planted_flops(4)[0]
    asked = [trial.id for look in play(case) for trial in look.trials]
    assert len(set(asked)) == len(asked)
    assert sum(flops[name] for name in asked) / sum(flops.values()) == cost_of(case).share


def test_what_is_wrong_or_different_is_counted(costs: list[Cost]) -> None:
    right = row_of(costs)
    assert (right["same_verdict"], right["other_verdict"], right["false_transfers_search"]) == (1.0, 0.0, 0.0)
    bad = replace(costs[2], of_search=("transfers", None), search_is_wrong=True)
    wrong = row_of([*costs[:2], bad, costs[3]])
    assert (wrong["same_verdict"], wrong["other_verdict"], wrong["false_transfers_search"]) == (0.75, 0.25, 0.5)
    unsure = row_of([replace(costs[0], of_search=("undecided", None)), *costs[1:]])
    assert (unsure["same_verdict"], unsure["other_verdict"], unsure["decided_by_search"]) == (0.75, 0.0, 3)
    assert text_of({"all": right}).count("\n") == 2


def test_the_doubt_of_each_search_is_followed_over_the_same_sweep() -> None:
    case = world_case(STAYS, 0)
    cost = cost_of(case)
    paths = three_paths(STAYS, case, cost.path, RULES)
    assert set(paths) == {"grid", "refine", "verdict"}
    assert paths["grid"][-1][0] == pytest.approx(1.0)
    assert paths["grid"][-1][1] < 0.02
    assert all(0 <= doubt <= MOST for path in paths.values() for _, doubt in path)
    assert mean_paths([[(0.2, 0.5), (0.4, 0.1)], [(0.3, 0.3)]], (0.1, 0.2, 0.35, 1.0)) == (
        (0.1, 0.5),
        (0.2, 0.5),
        (0.35, 0.4),
        (1.0, pytest.approx(0.2)),
    )


def test_published_sweeps_are_replayed_with_every_seed_first() -> None:
    cases = list(published_cases("quickstart"))
    num_seeds = len(cases[0].lines[0].base.trials[2.0**-6])
    assert [(case.name, case.seed) for case in cases] == [("quickstart: lr along width", n) for n in range(num_seeds)]
    first, second, *_ = (play(case)[0].trials for case in cases)
    assert {trial.seed for trial in first} == {0}
    assert {trial.seed for trial in second} == {1}
    assert all(set(all_flops(case.lines)) <= case.outcomes.keys() for case in cases)


def test_the_figure_says_after_how_many_flops_each_search_is_sure(tmp_path: Path) -> None:
    case = world_case(STAYS, 0)
    cost = cost_of(case)
    paths = {"grid": [(0.5, 0.4), (1.0, 0.01)], "refine": [(1.0, 0.3)], "verdict": list(cost.path)}
    draw_paths([replace(cost, paths=paths)], tmp_path / "doubt.svg")
    text = (tmp_path / "doubt.svg").read_text()
    assert "grid 100% of" in text
    assert "refine not reached" in text


def test_what_is_measured_is_named() -> None:
    found = list(jobs(2, 0, "drift 0$", 3, True, False))
    assert {job.group for job in found} == {"6 values, 3 seeds", "published quickstart", "published transfer"}
