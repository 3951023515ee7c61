"""What a verdict costs, on four sweeps whose verdicts are clear, and by one small run."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import verdict_cost
from foreign_worlds import World, values
from verdict_cost_cases import published_cases, world_case
from verdict_cost_measure import cost_of, grid_flops, play, row_of

from hpxfer.search.verdict_lines import all_flops

pytestmark = pytest.mark.slow

STAYS = World(name="stays", group=verdict_cost.SIX, x=values(6, middle=-6.5))
DRIFTS = replace(STAYS, name="drifts", offsets=(0.0, 1.0, 2.0, 3.0))


def test_clear_worlds_are_decided_rightly_for_less_than_the_grid() -> None:
    costs = [cost_of(world_case(world, seed)) for world in (STAYS, DRIFTS) for seed in range(2)]
    assert [cost.of_grid[0] for cost in costs] == ["transfers", "transfers", "drifts", "drifts"]
    assert all(cost.same and cost.share < 0.7 for cost in costs)
    assert not any(cost.grid_is_wrong or cost.search_is_wrong for cost in costs)
    assert [cost.of_search[1] is None for cost in costs] == [False, False, True, True]
    bad = replace(costs[2], of_search=("transfers", None), search_is_wrong=True)
    wrong = row_of([*costs[:2], bad, costs[3]])
    assert (wrong["same_verdict"], wrong["other_verdict"], wrong["false_transfers_search"]) == (0.75, 0.25, 0.5)


def test_both_arms_are_counted_and_the_base_once() -> None:
    case = world_case(STAYS, 0)
    flops = all_flops(case.lines)
    assert len(flops) == 6 * 3 * (1 + 2 * 3)
    assert sum(flops.values()) == pytest.approx(grid_flops(STAYS, 2))
    asked = [trial.id for look in play(case) for trial in look.trials]
    assert len(set(asked)) == len(asked)
    assert sum(flops[name] for name in asked) / sum(flops.values()) == cost_of(case).share


def test_published_sweeps_are_replayed_with_every_seed_first() -> None:
    first, second = (play(case)[0].trials for case in islice(published_cases("quickstart"), 2))
    assert [{trial.seed for trial in trials} for trials in (first, second)] == [{0}, {1}]


def test_a_small_run_writes_its_table_its_figure_and_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verdict_cost, "WORLDS", (STAYS,))
    figure, output = tmp_path / "doubt.svg", tmp_path / "verdict_cost.jsonl"
    options = ["--sweeps", "1", "--random", "0", "--no-published"]
    verdict_cost.main([*options, "--figure", str(figure), "--output", str(output)])
    entry = json.loads(output.read_text())
    assert verdict_cost.text_of(entry["rows"]) in capsys.readouterr().out
    assert (entry["rows"][verdict_cost.SIX]["same_verdict"], entry["rows"][verdict_cost.SIX]["sweeps"]) == (1.0, 1)
    assert all(f"{name} " in figure.read_text() for name in ("grid", "refine", "verdict"))
