"""The promise of `recipe predict`: on laws that it does not know, on published results, and beside simpler methods."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import predict_rates
import pytest
from predict_rates import CONSTANT, METHODS, OURS, POWER, Asked, held_out_sizes, of_laws, of_published, rates
from predict_worlds import FAMILIES, planted

pytestmark = pytest.mark.slow

# No number of the prediction was chosen on this draw.
LAWS = [planted(seed, draw=7) for seed in range(200)]


@cache
def answers(method: str) -> list[Asked]:
    """Return the answers of a method to all laws, computed once."""
    return of_laws(LAWS, METHODS[method])


def test_at_least_nine_of_ten_planted_laws_lie_inside() -> None:
    found = answers(OURS)
    measured = rates(found)
    assert (measured["asked"], measured["said"]) == (200, 200)
    assert measured["laws_inside"] >= 180
    assert measured["runs_inside"] >= 180
    assert measured["width_nats"] < 0.05
    assert measured["width_gains"] < 1.0  # an interval that held anything would be no answer
    for group in ("beyond", "between"):
        part = rates([asked for asked in found if asked.group == group])
        assert part["laws_inside"] >= 0.9 * part["laws"]
    for family in FAMILIES:
        part = rates([asked for law, asked in zip(LAWS, found, strict=True) if law.family == family])
        assert part["laws_inside"] >= 0.8 * part["laws"], family


def test_simpler_methods_miss_more_than_they_promise() -> None:
    """The twin: the same laws and the same count, and neither method keeps nine of ten."""
    constant, power = (rates(answers(name)) for name in (CONSTANT, POWER))
    assert constant["laws_inside"] < 0.3 * constant["laws"]
    assert power["laws_inside"] < 0.9 * power["laws"]


def test_three_shapes_are_enough_and_for_one_law_they_are_not() -> None:
    """One power law goes through any three losses, so that its errors know of seeds alone."""
    ours, power = (
        rates([asked for law, asked in zip(LAWS, answers(name), strict=True) if len(law.rows) == 3])
        for name in (OURS, POWER)
    )
    assert ours["laws_inside"] >= 0.9 * ours["laws"]
    assert power["laws_inside"] < 0.75 * power["laws"]


def test_the_largest_published_shapes_lie_where_the_others_say() -> None:
    sizes = list(held_out_sizes())
    assert len(sizes) >= 9
    ours, constant = (rates(of_published(sizes, METHODS[name])) for name in (OURS, CONSTANT))
    assert ours["runs_inside"] >= 0.9 * ours["runs"]
    assert ours["runs"] >= 30
    assert constant["runs_inside"] < 0.7 * constant["runs"]
    assert ours["said"] < ours["asked"]  # sp drifts, so that nothing is said of it
    diverges = [size for size in sizes if size.name == "softmax-collapse: width, mup-i"]
    (asked,) = of_published(diverges, METHODS[OURS])
    assert asked.interval is None
    assert math.isnan(asked.gain)


def test_the_command_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_rates, "held_out_sizes", lambda: iter(list(held_out_sizes(tmp_path))))
    predict_rates.main(["--laws", "8", "--output", str(tmp_path)])
    entry = json.loads((tmp_path / "predict_rates.jsonl").read_text(encoding="utf-8"))
    assert capsys.readouterr().out == predict_rates.rates_table(entry) + "\n"
    assert entry["groups"]["planted laws"][OURS]["asked"] == 8
