"""The promise of `hpxfer predict`: on laws that it does not know, on published results, and beside simpler methods."""

from __future__ import annotations

import inspect
import json
import math
from functools import cache
from pathlib import Path

import predict_rates
import predict_worlds
import pytest
from predict_rates import (
    CONSTANT,
    METHODS,
    OURS,
    POWER,
    Asked,
    HeldOutSize,
    held_out_sizes,
    of_laws,
    of_published,
    rates,
)
from predict_worlds import FAMILIES, planted

pytestmark = pytest.mark.slow

# No number of the prediction was chosen on this draw.
LAWS = [planted(seed, draw=7) for seed in range(200)]


@cache
def answers(method: str) -> list[Asked]:
    """Return the answers of a method to all laws, computed once."""
    return of_laws(LAWS, METHODS[method])


@cache
def published_sizes() -> list[HeldOutSize]:
    """Return the published sizes that are held out, judged once."""
    return list(held_out_sizes())


def test_equal_seeds_give_equal_laws_and_other_draws_others() -> None:
    assert planted(3) == planted(3)
    assert planted(3).rows != planted(3, draw=1).rows


def test_the_planted_laws_are_foreign_to_the_prediction() -> None:
    imported = {
        line for line in inspect.getsource(predict_worlds).splitlines() if "hpxfer" in line and "import" in line
    }
    assert imported == {"from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses"}  # the container alone
    for seed in range(80):
        law = planted(seed)
        assert 3 <= len(law.rows) <= 6
        assert law.beyond < 1 or 1.2 <= law.beyond <= 2
        cell = law.rows[0].cell(law.value)
        assert cell is not None
        assert math.isfinite(law.truth)


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


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_of_laws_is_missed(family: str) -> None:
    part = rates([asked for law, asked in zip(LAWS, answers(OURS), strict=True) if law.family == family])
    assert part["laws_inside"] >= 0.8 * part["laws"]


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
    sizes = published_sizes()
    assert len(sizes) >= 9
    ours, constant = (rates(of_published(sizes, METHODS[name])) for name in (OURS, CONSTANT))
    assert ours["runs_inside"] >= 0.9 * ours["runs"]
    assert ours["runs"] >= 30
    assert constant["runs_inside"] < 0.7 * constant["runs"]
    assert ours["said"] < ours["asked"]  # sp drifts, so that nothing is said of it


def test_nothing_is_said_of_a_published_line_that_diverges() -> None:
    sizes = [size for size in published_sizes() if size.name == "softmax-collapse: width, mup-i"]
    (asked,) = of_published(sizes, METHODS[OURS])
    assert asked.interval is None
    assert math.isnan(asked.gain)


def test_an_interval_counts_where_the_loss_lies() -> None:
    asked = [
        Asked(group="", truth=1.0, runs=(1.1, 2.0), gain=-0.5, interval=(0.9, 1.4)),
        Asked(group="", truth=2.0, runs=(1.0,), gain=0.5, interval=(0.9, 1.4)),
        Asked(group="", truth=1.0, runs=(1.0,), gain=0.5, interval=None),
    ]
    found = rates(asked)
    assert (found["asked"], found["said"], found["laws"], found["laws_inside"]) == (3, 2, 2, 1)
    assert (found["runs"], found["runs_inside"]) == (3, 2)
    assert found["width_gains"] == pytest.approx(1.0)
    assert rates(asked[2:])["width_nats"] is None


def test_the_command_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_rates, "held_out_sizes", lambda: iter(list(held_out_sizes(tmp_path))))
    predict_rates.main(["--laws", "8", "--output", str(tmp_path)])
    entry = json.loads((tmp_path / predict_rates.RECORD).read_text(encoding="utf-8"))
    assert capsys.readouterr().out == predict_rates.rates_table(entry) + "\n"
    assert entry["groups"]["planted laws"][OURS]["asked"] == 8
