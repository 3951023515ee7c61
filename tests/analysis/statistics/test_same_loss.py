"""Arms against references: when a curve reaches a loss, paired seeds, divergence, curves from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from found_rows import rows
from numpy.typing import NDArray
from there import there

from hpxfer.analysis.references import ReferenceCurve
from hpxfer.analysis.statistics import same_loss
from hpxfer.analysis.statistics.reaching import reaches, smoothed
from hpxfer.analysis.statistics.same_loss import REACHED, ArmRun, curve_from, curve_of
from hpxfer.analysis.statistics.transferred import Curve

STEPS = np.arange(1000)


def falling(rate: float, seed: int, noise: float = 0.02) -> Curve:
    """Return a power law that goes `rate` times as fast; the batches of a seed are the same at any rate."""
    luck = noise * np.random.default_rng(seed).standard_normal(STEPS.size)
    return STEPS, 2 + (rate * (STEPS + 1) / 20.0) ** -0.5 + luck


def run(rate: float, seeds: Sequence[int] = (0, 1, 2), diverged: Collection[int] = (), **given: Any) -> ArmRun:
    planned = frozenset(given.pop("planned", (*seeds, *diverged)))
    curves = {seed: falling(rate, seed) for seed in seeds}
    return ArmRun(name=f"arm {rate:g}", curves=curves, diverged=frozenset(diverged), planned=planned, **given)


def against_arm(reference: ArmRun, arm: ArmRun) -> SimpleNamespace:
    return _of(same_loss.against_arm(reference, arm))


def against_curve(reference: ReferenceCurve, arm: ArmRun) -> SimpleNamespace:
    return _of(same_loss.against_curve(reference, arm))


def _of(row: dict[str, Any]) -> SimpleNamespace:
    assert list(row) == list(REACHED)
    return SimpleNamespace(**row)


@pytest.mark.parametrize("rate", [1.5, 3.0])
def test_the_planted_rate_is_found(rate: float) -> None:
    found = against_arm(run(1.0), run(rate))
    assert found.speed_up == pytest.approx(rate, rel=0.1)
    assert found.steps == pytest.approx(1000 / rate, rel=0.1)
    assert found.low <= found.speed_up <= found.high
    assert (found.num_seeds, found.num_reached, found.reference_steps) == (3, 3, 1000)
    assert found.in_brief.startswith(
        f"{found.speed_up:.3g}x fewer steps ({found.low:.3g} to {found.high:.3g}), 3 seeds"
    )


def test_an_arm_that_ends_above_has_not_reached_the_loss() -> None:
    found = against_arm(run(1.0), run(0.5))
    assert (found.steps, found.speed_up, found.tokens, found.fewer_tokens, found.num_reached) == (None,) * 4 + (0,)
    assert found.in_brief == "not reached in 1000 steps by any of 3 seeds"
    assert found.arm_end_nats > found.loss_nats


def test_a_longer_run_may_reach_the_loss_later_than_the_reference() -> None:
    short = ArmRun(name="short", curves={0: (STEPS[:400], falling(1.0, 0, 0.0)[1][:400])}, planned=frozenset({0}))
    longer = ArmRun(name="longer", curves={0: falling(0.8, 0, 0.0)}, planned=frozenset({0}))
    found = against_arm(short, longer)
    assert found.speed_up == pytest.approx(0.8, rel=0.01)
    assert found.in_brief == "1.25x more steps, 1 seed"


def test_training_losses_on_different_data_are_not_compared() -> None:
    dense, moe = run(1.0, data="text:a.txt", data_digest="a"), run(2.0, data="text:b.txt", data_digest="b")
    found = against_arm(dense, moe)
    assert found.in_brief.startswith("not compared: they train on different data")
    assert found.other_data == "text:b.txt"
    assert (found.speed_up, found.steps, found.tokens, found.fewer_flops, found.loss_nats) == (None,) * 5
    same = against_arm(dense, run(2.0, data="text:copy.txt", data_digest="a"))
    assert same.other_data is None
    assert same.speed_up == pytest.approx(2, rel=0.1)


def test_tokens_and_flops_follow_from_batches_and_costs() -> None:
    dense = run(1.0, batch_tokens=512, flops_per_token=6e4, active=1000)
    moe = run(2.0, batch_tokens=1024, flops_per_token=9e4, active=1500)
    found = against_arm(dense, moe)
    assert found.tokens == pytest.approx(1024 * found.steps)
    assert found.fewer_tokens == pytest.approx(found.speed_up / 2)
    assert found.fewer_flops == pytest.approx(found.speed_up / 2 * 6 / 9)
    assert found.reference_flops == pytest.approx(1000 * 512 * 6e4)
    assert found.active_ratio == pytest.approx(1.5)
    assert found.in_brief.endswith("; it has 1.5 times the active parameters")
    unknown = against_arm(run(1.0), run(2.0))
    assert (unknown.flops, unknown.fewer_flops, unknown.active_ratio) == (None, None, None)


def test_a_seed_that_diverged_has_not_reached_the_loss() -> None:
    one = against_arm(run(1.0), run(2.0, seeds=(0, 1), diverged=(2,)))
    assert (one.num_seeds, one.num_reached, one.num_diverged, one.low) == (3, 2, 1, None)
    assert one.speed_up is not None
    assert one.in_brief.endswith("x fewer steps, not reached by 1 of 3 seeds, 1 diverged")
    most = against_arm(run(1.0), run(2.0, seeds=(0,), diverged=(1, 2)))
    assert (most.num_reached, most.speed_up) == (1, None)
    assert most.in_brief == "not reached in 1000 steps by 2 of 3 seeds, 2 diverged"
    every = against_arm(run(1.0), run(2.0, seeds=(), diverged=(0, 1, 2)))
    assert (every.arm_end_nats, every.in_brief) == (None, "not reached by any of 3 seeds, 3 diverged")


def test_only_seeds_that_both_have_are_paired() -> None:
    found = against_arm(run(1.0, seeds=(1, 2)), run(2.0, seeds=(0, 1), planned=(0, 1, 2)))
    assert (found.num_seeds, found.num_missing) == (1, 2)
    alone = against_arm(run(1.0, seeds=(1,)), run(2.0, seeds=(1,)))
    assert found.steps == alone.steps
    none = against_arm(run(1.0, seeds=(5,)), run(2.0))
    assert (none.in_brief, none.speed_up, none.num_missing) == ("no seed has a whole loss curve of both", None, 3)


def test_the_luck_of_a_seed_cancels_as_seeds_are_paired() -> None:
    luck = (0.0, 0.1, -0.1)

    def lucky(rate: float, order: Sequence[int]) -> ArmRun:
        own = {seed: (STEPS, falling(rate, 0, 0.0)[1] + luck[i]) for seed, i in enumerate(order)}
        return ArmRun(name="lucky", curves=own, planned=frozenset(own))

    paired = against_arm(lucky(1.0, (0, 1, 2)), lucky(2.0, (0, 1, 2)))
    assert paired.low == pytest.approx(2.0, rel=0.01)
    assert paired.high == pytest.approx(2.0, rel=0.01)
    shuffled = against_arm(lucky(1.0, (0, 1, 2)), lucky(2.0, (2, 0, 1)))
    assert shuffled.num_reached < 3


POINTS = tuple(float(x) for x in range(10, 1001, 10))
LOSSES = tuple(2 + (x / 20) ** -0.5 for x in POINTS)


def test_a_curve_from_elsewhere_is_a_reference_for_every_seed() -> None:
    by_steps = ReferenceCurve(name="gpt2", losses=LOSSES, steps=POINTS)
    found = against_curve(by_steps, run(2.0, diverged=(7,), batch_tokens=512))
    assert found.speed_up == pytest.approx(2.0, rel=0.1)
    assert (found.num_seeds, found.num_reached, found.reference_tokens, found.fewer_tokens) == (4, 3, None, None)
    by_tokens = ReferenceCurve(name="gpt2", losses=LOSSES, tokens=tuple(512 * x for x in POINTS))
    tokens = against_curve(by_tokens, run(2.0, batch_tokens=1024))
    assert tokens.speed_up == pytest.approx(1.0, rel=0.1)  # half the steps, each of twice the tokens
    assert tokens.fewer_tokens == pytest.approx(tokens.speed_up)
    assert "tokens" in tokens.in_brief
    both = against_curve(
        ReferenceCurve(name="gpt2", losses=LOSSES, steps=POINTS, tokens=tuple(512 * x for x in POINTS)),
        run(2.0, batch_tokens=1024),
    )
    assert both.speed_up == pytest.approx(2.0, rel=0.1)
    assert both.fewer_tokens == pytest.approx(1.0, rel=0.1)
    assert against_curve(by_steps, run(2.0, seeds=())).in_brief == "no seed has a whole loss curve"


def test_drawn_curves_have_few_points_and_both_ends() -> None:
    drawn = rows(curve_of(run(1.0, batch_tokens=4), "arm"))
    assert (drawn[0].steps, drawn[-1].steps, drawn[-1].tokens) == (1.0, 1000.0, 4000.0)
    assert len(drawn) <= 98
    assert all(row.min_nats <= row.mean_nats <= row.max_nats for row in drawn)
    assert curve_of(run(1.0, seeds=()), "arm") == []
    elsewhere = rows(curve_from(ReferenceCurve(name="gpt2", losses=LOSSES, tokens=POINTS)))
    assert {(row.steps, row.kind) for row in elsewhere} == {(None, "elsewhere")}
    assert elsewhere[-1].tokens == 1000.0


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
