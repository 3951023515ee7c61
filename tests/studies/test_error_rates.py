"""The worlds of the error rates, their truth, the methods that the report is compared with, and one small run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import error_rates
import numpy as np
import pytest
from comparators import OTHERS, argmin, parabola
from error_rates import OURS, badness, error_rates_tables, error_summary
from foreign_worlds import Noise, World, WorldSweep, values
from loss_arrays import losses
from verdict_counts import VerdictCounts, measure, measure_all
from world_basins import TwoExponential
from world_list import TODAY, WORLDS, line, random_worlds
from world_truth import lowest_points, true_verdict, truth_of


def exact(offsets: tuple[float, ...], **more: object) -> WorldSweep:
    """Return a sweep without noise whose base has its optimum at 2^-6, on a grid that holds 2^-6."""
    given = {"base": -6.0, "base_spread": 0.0, "either_sign": False, "noise": Noise(sd=0.0)} | more
    return World(name="exact", offsets=offsets, **given).draw(0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offsets", "curvature", "transfers", "clear"),
    [
        ((0.0, 0.0, 0.0, 0.7), 0.02, True, True),  # 0.0098 nats are lost, the limit is 0.027
        ((0.0, 0.0, 0.0, 0.7), 0.08, False, False),  # 0.039 nats
        ((0.0, 0.0, 0.0, 0.7), 0.12, False, True),  # twice the limit
        ((0.0, 0.0, 0.0, 0.99), 0.001, True, False),
        ((0.0, 0.0, 0.0, 1.0), 0.001, False, False),  # an octave itself drifts
        ((0.0, 0.6, -0.6, 0.0), 0.001, False, False),
        ((0.0, 0.0, 0.0, 1.25), 0.001, False, True),
    ],
)
def test_the_truth_is_below_both_limits_or_above_either(
    offsets: tuple[float, ...], curvature: float, transfers: bool, clear: bool
) -> None:
    sweep = exact(offsets, curvature=(curvature,))
    truth = truth_of(sweep)
    assert truth.optimum_I == pytest.approx(-6.0 + np.array(offsets), abs=1e-3)
    assert truth.is_line == (offsets == line(offsets[1]))
    found = true_verdict(sweep, truth, 2.0**-6)
    assert (found.transfers, found.clear) == (transfers, clear)


def test_what_is_handed_over_is_judged_at_the_base_too() -> None:
    sweep = exact(line(0.0))
    assert [true_verdict(sweep, truth_of(sweep), 2.0**at).transfers for at in (-5, -4)] == [True, False]
    assert not true_verdict(exact(line(0.0), cliff=0.5), truth_of(sweep), 2.0**-5).transfers


def test_the_lowest_point_is_of_the_curve_and_not_of_its_name() -> None:
    """A sum of two basins is lowest between them. Nothing but the numbers of the curve can know."""
    at, loss = lowest_points(lambda x: ((x + 6.0) ** 2 + (x + 5.0) ** 2)[None], -9.0, -3.0)
    assert (at[0], loss[0]) == (pytest.approx(-5.5, abs=1e-3), pytest.approx(0.5, abs=1e-6))


def test_every_world_has_its_name_and_losses_where_nothing_diverges_or_is_missing() -> None:
    worlds = [*WORLDS, *random_worlds(30, 5)]
    assert len({world.name for world in worlds}) == len(worlds)
    assert len([world for world in WORLDS if world.group == TODAY]) == 30
    for world in worlds:
        sweep = world.draw(0)
        u_IK, known_IKS = sweep.curves.octaves(sweep.x_K), ~np.isnan(sweep.loss_IKS)
        under = u_IK <= world.cliff - world.cliff_spread
        assert np.isfinite(sweep.loss_IKS[under][known_IKS[under]]).all(), world.name
        assert known_IKS.all() == (not world.missing and not world.missing_top), world.name
        assert not known_IKS[:, len(world.x) - world.missing_top :].any(), world.name
        assert truth_of(sweep).optimum_I == pytest.approx(sweep.curves.planted_I, abs=1e-3), world.name
        assert np.array_equal(losses(sweep.grid()), sweep.loss_IKS, equal_nan=True), world.name
        assert np.array_equal(world.draw(0).loss_IKS, sweep.loss_IKS, equal_nan=True), world.name


def scatter(num: int = 300, **noise: object) -> np.ndarray:
    """Return the noise of so many sweeps, by sweep, shape, HP and seed; the optimum is the fourth of seven HPs."""
    kind = Noise(**noise)  # type: ignore[arg-type]
    world = World(name="noise", noise=kind, base_spread=0.0, x=values(7, middle=-6.2))
    return np.array([(sweep := world.draw(s)).loss_IKS - sweep.curves(sweep.x_K)[:, :, None] for s in range(num)])


def test_the_noise_of_a_world_is_what_it_says() -> None:
    for tail in (math.inf, 5.0):
        sd_K = scatter(sd=0.01, growth=1.0, tail=tail).std(axis=(0, 1, 3))
        assert sd_K == pytest.approx(0.01 * np.array([1, 1, 1, 1, 2, 4, 8]), rel=0.1)
    near = scatter(sd=0.01, neighbors=0.8)
    assert np.corrcoef(near[:, :, 2].ravel(), near[:, :, 3].ravel())[0, 1] == pytest.approx(0.8, abs=0.05)
    assert np.mean(scatter(sd=0.0, spikes=0.1) > 0.2) == pytest.approx(0.1, abs=0.01)
    luck = scatter(sd=0.0, luck=0.02, luck_slope=0.01)
    assert np.ptp(luck, axis=1).max() < 1e-12 < np.ptp(luck, axis=2).max()
    assert np.ptp(scatter(sd=0.0, luck=0.02, luck_shared=False), axis=1).min() > 1e-6
    assert scatter(sd=0.01, largest=8.0).std(axis=(0, 2, 3)) == pytest.approx([0.01, 0.02, 0.04, 0.08], rel=0.1)
    wrong = scatter(sd=0.0, wrong_nats=(-0.3, -0.1))
    assert ((wrong < -1e-9).sum(axis=(1, 2, 3)) == 1).all()
    assert {(np.abs(one) > 1e-9).sum() for one in scatter(20, sd=0.0, swapped=True)} <= {0, 2}


@pytest.mark.parametrize("name", OTHERS)
def test_other_methods_find_what_is_easy_to_find(name: str) -> None:
    for offsets, verdict in ((line(0.1), "transfers"), (line(0.5), "drifts")):
        world = World(name="easy", offsets=offsets, noise=Noise(sd=1e-4), base_spread=0.0, base=-6.0)
        answer, truth = OTHERS[name](world.draw(0).grid()), truth_of(world.draw(0))
        assert (answer.value, answer.verdict) == (2.0**-6, verdict)
        if OTHERS[name] is not argmin:
            assert answer.move == pytest.approx((truth.ends, truth.ends), abs=0.1)
    assert OTHERS[name](World(name="gone", cliff=-4.0).draw(0).grid()).verdict == "undecided"


def test_parabolas_miss_the_optimum_of_a_basin_that_is_steep_on_one_side() -> None:
    steep, same = (
        measure_all(world, range(20), {"": parabola})[""].rates()["optimum_coverage"]
        for world in (World(name="steep", basin=TwoExponential((1.0,), (3.0,))), World(name="stays", base_spread=0.2))
    )
    assert steep is not None
    assert same is not None
    assert steep < 0.5 < 0.85 < same


def test_the_worst_rate_makes_a_row_bad() -> None:
    def bad(**counts: int) -> float:
        return badness(VerdictCounts(**{"sweeps": 200, "truly_transfers": 100, **counts}).as_json())

    assert bad() == 0.0
    assert bad(false_transfers=1) < 1 < bad(false_transfers=20)
    assert bad(moves=10, moves_covered=7) == pytest.approx(3.0)
    assert bad(lines=100, not_lines=10) == pytest.approx(2.0)


def test_the_summary_adds_the_counts_of_all_worlds_and_of_each_group() -> None:
    def world(group: str, **counts: int) -> dict[str, object]:
        found = VerdictCounts(**{"sweeps": 20, "truly_transfers": 5, "decided": 9, **counts}).as_json()
        return {"group": group, "name": group, "methods": {OURS: found}}

    rows = [world("a", false_transfers=2, clear=8, clear_decided=6), world("b", false_drifts=1)]
    entry = {"rows": rows, "groups": {"all others": {}, "a": {}, "b": {}}, "sweeps": 20, "date": "today", "hpxfer": "1"}
    lines = error_summary({**entry, "command": "make"}).splitlines()
    assert [line.strip("| ").split(" | ") for line in lines[2:5]] == [
        ["all worlds (2)", OURS, "3 of 18", "2 of 30", "1 of 10", "75.0%", "-"],
        ["a (1)", OURS, "2 of 9", "2 of 15", "0 of 5", "75.0%", "-"],
        ["b (1)", OURS, "1 of 9", "0 of 15", "1 of 5", "-", "-"],
    ]
    assert lines[-1] == "20 sweeps per world, today, hpxfer 1: `make`."


@pytest.mark.slow
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
    assert entry["groups"]["a"][OURS]["sweeps"] == 40
    assert entry["rows"][0]["methods"][OURS] == measure(worlds[2], range(20), parabola).as_json()
    assert entry["rows"][0]["methods"][OURS]["false_drifts"] > 0
    assert capsys.readouterr().out == error_rates_tables(entry) + "\n"
