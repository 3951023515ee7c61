"""Counting right and wrong answers, the methods that the report is compared with, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import error_rates
import numpy as np
import pytest
from comparators import OTHERS, argmin, bootstrap, parabola
from error_rates_tables import OURS, badness, error_rates_tables, width_growth
from foreign_worlds import Noise, World
from verdict_counts import Answer, VerdictCounts, count, measure, measure_all
from world_basins import TwoExponential
from world_list import TODAY, line
from world_truth import true_verdict, truth_of

from hpxfer.verdict.loss_grid import LossGrid

pytestmark = pytest.mark.slow

STAYS = World(name="stays", base_spread=0.2)
MOVES = World(name="moves", offsets=line(1.0), base_spread=0.2)


def says(verdict: str, optima: float = 1.0, move: tuple[float, float] | None = None, is_line: bool | None = None):  # type: ignore[no-untyped-def]
    """Return a method that gives the same answer to every sweep, with intervals of so many octaves around 2^-6.2."""

    def method(grid: LossGrid) -> Answer:
        around = (-6.2 - optima, -6.2 + optima)
        return Answer(
            value=2.0**-6,
            verdict=verdict,  # type: ignore[arg-type]
            optima=(around,) * len(grid.rows),
            drift=(-0.1, 0.1),
            move=move,
            is_line=is_line,
        )

    return method


@pytest.mark.parametrize(("world", "right", "wrong"), [(STAYS, "transfers", "drifts"), (MOVES, "drifts", "transfers")])
def test_a_wrong_verdict_counts_over_the_sweeps_of_the_other_kind(world: World, right: str, wrong: str) -> None:
    good, bad = (measure(world, range(5), says(verdict)) for verdict in (right, wrong))
    assert (good.rates()["right_of_decided"], bad.rates()["right_of_decided"]) == (1.0, 0.0)
    assert good.rates()[f"false_{wrong}"] in (0.0, None)
    assert bad.rates()[f"false_{wrong}"] == 1.0
    assert bad.rates()[f"false_{right}"] is None  # no sweep for which this verdict would be wrong
    assert (good.wrong, bad.wrong) == ((), (0, 1, 2, 3, 4))
    none = measure(world, range(5), says("undecided"))
    assert (none.rates()["right_of_decided"], none.rates()["clear_decided"]) == (None, 0.0)
    assert none.rates()[f"false_{wrong}"] == 0.0


def test_intervals_count_where_the_truth_lies() -> None:
    rates = measure(MOVES, range(8), says("drifts", move=(-3.5, 3.5), is_line=True)).rates()
    assert rates["drift_coverage"] == 0.0
    assert rates["move_coverage"] == 1.0
    assert rates["not_a_line"] == 0.0
    assert rates["optimum_coverage"] is not None
    assert 0.2 <= rates["optimum_coverage"] <= 0.5
    assert rates["width_octaves"] == pytest.approx(2.0)
    assert measure(STAYS, range(8), says("drifts", optima=math.inf)).rates()["width_octaves"] is None
    assert measure(STAYS, range(8), says("drifts", is_line=False)).rates()["not_a_line"] == 1.0


def test_a_move_must_hold_the_ends_and_the_largest_difference() -> None:
    world = World(name="back", offsets=(0.0, 1.5, 1.5, 0.0))
    narrow, wide = (measure(world, range(5), says("drifts", move=(-most, most))) for most in (0.5, 1.6))
    assert (narrow.ends_covered, narrow.moves_covered) == (5, 0)
    assert (wide.ends_covered, wide.moves_covered) == (5, 5)
    crooked = measure(world, range(5), says("drifts", is_line=False))
    assert (crooked.lines, crooked.rates()["not_a_line"]) == (0, None)


def test_counts_add_up() -> None:
    sweep = STAYS.draw(0)
    truth = truth_of(sweep)
    answer = says("transfers")(sweep.grid())
    one = count(truth, true_verdict(sweep, truth, answer.value), answer, 0)
    assert (one + one).sweeps == 2
    assert (one + one).widths == one.widths * 2
    assert VerdictCounts(sweeps=1).rates()["optimum_coverage"] is None


def test_the_report_is_right_where_it_is_easy() -> None:
    assert measure(STAYS, range(6)).rates()["right_of_decided"] == 1.0
    assert measure(MOVES, range(6)).rates()["false_transfers"] == 0.0


@pytest.mark.parametrize("method", [argmin, parabola, bootstrap])
def test_other_methods_find_what_is_easy_to_find(method) -> None:  # type: ignore[no-untyped-def]
    exact = {"noise": Noise(sd=1e-4), "base_spread": 0.0, "base": -6.0}
    for offsets, verdict in ((line(0.1), "transfers"), (line(0.5), "drifts")):
        world = World(name="easy", offsets=offsets, **exact)
        answer = method(world.draw(0).grid())
        assert (answer.value, answer.verdict) == (2.0**-6, verdict)
        if method is not argmin:
            truth = truth_of(world.draw(0))
            assert answer.move == pytest.approx((truth.ends, truth.ends), abs=0.1)
            middle = [sum(interval) / 2 for interval in answer.optima]
            assert middle == pytest.approx(truth.optimum_I, abs=0.1)
            assert np.mean(answer.drift) == pytest.approx(truth.drift, abs=0.05)


def test_what_other_methods_cannot_say_they_do_not() -> None:
    one = World(name="one seed", seeds=1).draw(0).grid()
    assert bootstrap(one).verdict == "undecided"
    gone = World(name="gone", cliff=-4.0).draw(0).grid()
    assert {name: method(gone).verdict for name, method in OTHERS.items()} == dict.fromkeys(OTHERS, "undecided")
    holes = World(name="holes", missing=0.4, cliff=1.0, seeds=2)
    for seed in range(10):
        for method in OTHERS.values():
            assert method(holes.draw(seed).grid()).verdict in ("transfers", "drifts", "undecided")


def test_parabolas_miss_the_optimum_of_a_basin_that_is_steep_on_one_side() -> None:
    steep = World(name="steep", basin=TwoExponential((1.0,), (3.0,)))
    found = measure_all(steep, range(20), {"parabola": parabola})["parabola"].rates()["optimum_coverage"]
    same = measure_all(STAYS, range(20), {"parabola": parabola})["parabola"].rates()["optimum_coverage"]
    assert found is not None
    assert same is not None
    assert found < 0.5 < 0.85 < same


def test_the_worst_rate_makes_a_row_bad() -> None:
    def bad(**counts: int) -> float:
        return badness(VerdictCounts(**{"sweeps": 200, "truly_transfers": 100, **counts}).as_json())

    assert bad() == 0.0
    assert bad(false_transfers=1) < 1 < bad(false_transfers=20)
    assert bad(false_transfers=1, truly_transfers=199) < 1  # one of one says little
    assert bad(false_drifts=10) < bad(false_drifts=20) < bad(false_drifts=20, moves=10, moves_covered=1)
    assert bad(moves=10, moves_covered=7) == pytest.approx(3.0)
    assert bad(lines=100, not_lines=10) == pytest.approx(2.0)
    assert bad(decided=100, clear=100) == 0.0


def test_the_command_puts_the_worst_world_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worlds = (
        World(name="other", group="b"),
        World(name="good", group="a"),
        World(name="bad", group="a", noise=Noise(sd=0.3)),
    )
    monkeypatch.setattr(error_rates, "WORLDS", worlds)
    monkeypatch.setattr(error_rates, "report", parabola)
    error_rates.main(["--sweeps", "20", "--workers", "2", "--worlds", "^a: ", "--no-others", "--output", str(tmp_path)])
    (entry,) = map(json.loads, (tmp_path / "error_rates.jsonl").read_text().splitlines())
    assert [row["name"] for row in entry["rows"]] == ["bad", "good"]
    assert [row["methods"][OURS]["sweeps"] for row in entry["rows"]] == [20, 20]
    assert entry["groups"]["a"][OURS]["sweeps"] == 40
    assert entry["rows"][0]["methods"][OURS] == measure(worlds[2], range(20), parabola).as_json()
    assert entry["rows"][0]["methods"][OURS]["false_drifts"] > 0
    assert capsys.readouterr().out == error_rates_tables(entry) + "\n"
    assert "| a | bad | " in error_rates_tables(entry)


def _entry(widths: dict[str, float | None], group: str = TODAY, note: str = "") -> dict[str, Any]:
    counts = VerdictCounts(sweeps=4, truly_transfers=1, false_transfers=2).as_json()
    rows = [
        {
            "name": name,
            "group": group,
            "methods": {OURS: counts | {"rates": counts["rates"] | {"width_octaves": width}}},
        }
        for name, width in widths.items()
    ]
    return {"rows": rows, "groups": {}, "sweeps": 4, "date": "d", "hpxfer": "h", "command": "c", "note": note}


def test_intervals_are_compared_with_those_of_an_earlier_run_world_by_world() -> None:
    before = _entry({"a": 0.1, "b": 0.2, "c": 0.4, "gone": 9.0}, note="before")
    assert width_growth(_entry({"a": 0.12, "b": 0.22, "c": 0.4, "new": 9.0}), before) == pytest.approx(0.1)
    assert width_growth(_entry({"a": 0.12}, group="other"), before) is None
    assert width_growth(_entry({"a": None}), before) is None
    text = error_rates_tables(_entry({"a": 0.05}), before)
    assert text.endswith("is 50% narrower than in the run of d (before).")
    assert "| a | 2 of 3 | 0 of 1 | " in text
    assert error_rates_tables(_entry({"a": 0.05})).endswith("hpxfer h: `c`.")
