"""Slopes, intervals, verdicts and tables by scale on made-up sizes, of which the truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hpxfer.coordinates.measure import (
    NOT_ALIGNED,
    Fit,
    Kind,
    Observation,
    Prediction,
    Slope,
    as_data,
    as_text,
    by_scale,
    fit,
    judge,
    over_blocks,
    over_layers,
    slope_of,
)

SCALES = (32.0, 64.0, 128.0, 256.0)


def seen(sizes: Sequence[Sequence[float]], *, layer: int | None = None, step: int = 1) -> list[Observation]:
    """Return one quantity at every scale; `sizes` are those of the seeds."""
    return [
        Observation(quantity="change", role="router", layer=layer, step=step, scale=scale, values=tuple(values))
        for scale, values in zip(SCALES, sizes, strict=True)
    ]


def line(sizes: Sequence[Sequence[float]], exponent: float | None = 0.0, *, zero: bool = False) -> Fit:
    found = Prediction(quantity="change", role="router", exponent=exponent, source="a paper", zero=zero)
    (out,) = fit(seen(sizes), [found], tolerance=0.15)
    return out


def power(exponent: float, noise: Callable[[int, int], float] = lambda scale, seed: 0.0) -> list[list[float]]:
    return [[scale**exponent * math.exp(noise(i, seed)) for seed in range(4)] for i, scale in enumerate(SCALES)]


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5])
def test_a_power_law_has_its_slope_and_no_width(exponent: float) -> None:
    out = line(power(exponent), exponent)
    assert out.verdict == "ok"
    assert (out.slope, out.low, out.high) == pytest.approx((exponent, exponent, exponent), abs=1e-9)
    assert out.magnitudes == pytest.approx([scale**exponent for scale in SCALES])
    assert line(power(exponent), exponent + 0.5).verdict == "miss"


def test_what_random_updates_would_add_is_taken_off_and_decides_nothing_where_it_leads() -> None:
    def of(aligned: float) -> Fit:
        parts = [(aligned, 4 * scale**-0.5) for scale in SCALES]
        made = seen([[math.hypot(*both)] * 3 for both in parts])
        made = [replace(each, random=(both[1],) * 3) for each, both in zip(made, parts, strict=True)]
        found = Prediction(quantity="change", role="router", exponent=0.0, source="a paper")
        (out,) = fit(made, [found], tolerance=0.15)
        return out

    assert (of(1.0).verdict, of(1.0).slope) == ("ok", pytest.approx(0.0, abs=1e-9))
    assert of(0.6).dropped == (32.0,)
    assert (of(0.1).verdict, of(0.1).source) == ("no prediction", NOT_ALIGNED)


def test_a_seed_s_own_offset_is_no_noise_and_its_own_slope_is() -> None:
    offsets = line(power(0.0, lambda scale, seed: 0.5 * seed))
    slopes = line(power(0.0, lambda scale, seed: 0.4 * (seed - 1.5) * (scale - 1.5)))
    assert offsets.verdict == "ok"
    assert (offsets.low, offsets.high) == pytest.approx((offsets.slope, offsets.slope), abs=1e-9)
    assert slopes.slope == pytest.approx(0.0, abs=0.1)
    assert slopes.verdict == "unclear"


def test_what_is_no_power_law_gets_a_wide_interval() -> None:
    curved = slope_of(SCALES, [[math.exp(0.3 * (i - 1.5) ** 2)] * 4 for i in range(4)])
    assert curved.value == pytest.approx(0.0, abs=1e-9)
    assert curved.high > 0.15
    one_seed = slope_of(SCALES, [[1.0], [2.0], [1.0], [2.0]])
    assert one_seed.high - one_seed.low > 1


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(400):
        out = slope_of(SCALES, power(-0.5, lambda scale, seed: float(rng.normal(0, 0.1))))
        hits.append(out.low <= -0.5 <= out.high)
    assert 0.92 <= np.mean(hits) <= 0.995


def test_where_the_scales_scatter_intervals_hold_the_truth_less_often() -> None:
    """As the docstring says: seeds that agree lend their freedom to residuals that they do not explain."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(2000):
        common = rng.normal(0, 0.1, len(SCALES))
        sizes = [[math.exp(common[i] + rng.normal(0, 0.02)) for _ in range(6)] for i in range(len(SCALES))]
        out = slope_of(SCALES, sizes)
        hits.append(out.low <= 0 <= out.high)
    assert 0.8 <= np.mean(hits) <= 0.86


@pytest.mark.parametrize(
    ("sizes", "exponent", "zero", "verdict"),
    [
        ([[0.0, 0.0]] * 4, None, True, "zero"),  # as predicted
        ([[0.0, 0.0]] * 4, None, False, "zero"),  # nothing is known of it
        ([[0.0, 0.0]] * 4, 0.0, False, "miss"),  # it should move
        ([[0.0, 0.0], *[[1.0, 1.0]] * 3], 0.0, False, "miss"),
        ([[1e-9, 0.0], *[[0.0, 0.0]] * 3], None, True, "miss"),  # it should not move
        ([*[[1.0, 1.0]] * 3, [1.0, math.nan]], 0.0, False, "miss"),
        ([*[[1.0, 1.0]] * 3, [1.0, math.inf]], 0.0, False, "miss"),
        ([*[[1.0, 1.0]] * 3, [1.0, math.nan]], None, False, "no prediction"),
        ([[1.0, 1.0]] * 4, None, False, "no prediction"),
    ],
)
def test_zeros_and_divergence(sizes: list[list[float]], exponent: float | None, zero: bool, verdict: str) -> None:
    out = line(sizes, exponent, zero=zero)
    assert out.verdict == verdict
    if verdict in ("zero", "miss") and not all(of_scale == [1.0, 1.0] for of_scale in sizes[1:]):
        assert out.slope is None


def test_exact_zeros_are_left_out_of_the_slope_and_named() -> None:
    sizes = [[0.0, 1.0], [2.0, 2.0], [4.0, 4.0], [8.0, 8.0]]  # one seed is zero at the first scale
    out = line(sizes, 1.0)
    assert (out.slope, out.dropped) == (pytest.approx(1.0), (SCALES[0],))
    assert out.verdict == "unclear"  # three scales agree, and a seed does not
    assert line(sizes, 0.0).verdict == "miss"
    assert line([[0.0, 0.0], [0.0, 0.0], [4.0, 4.0], [8.0, 8.0]], 1.0).slope is None  # two scales give no slope


def test_the_rule_of_a_verdict() -> None:
    slope = slope_of(SCALES, power(0.1))
    assert judge(slope, 0.0, 0.15) == "ok"
    assert judge(slope, 0.0, 0.05) == "miss"
    wide = type(slope)(value=0.0, low=-0.2, high=0.2)
    assert judge(wide, 0.0, 0.15) == "unclear"  # not shown to be near
    assert judge(wide, 0.3, 0.15) == "unclear"  # nor to be far
    assert judge(wide, 0.36, 0.15) == "miss"


def test_a_bound_allows_more_than_an_equality() -> None:
    def on(low: float, high: float) -> list[str]:
        slope = Slope(value=(low + high) / 2, low=low, high=high)
        return [judge(slope, 0.0, 0.15, bound) for bound in ("equal", "at most", "at least")]

    assert on(-0.1, 0.16) == ["ok", "ok", "ok"]  # near is within both bounds
    assert on(-0.6, -0.4) == ["miss", "ok", "miss"]
    assert on(0.4, 0.6) == ["miss", "miss", "ok"]
    assert on(-0.6, 0.1) == ["unclear", "ok", "unclear"]
    assert on(-0.6, 0.2) == ["unclear", "unclear", "unclear"]


def test_an_interval_allows_what_lies_inside() -> None:
    def on(value: float, half: float = 0.05) -> str:
        return judge(Slope(value=value, low=value - half, high=value + half), 0.0, 0.15, least=-0.5)

    assert [on(value) for value in (-0.6, -0.5, -0.25, 0.1)] == ["ok"] * 4
    assert [on(-0.75), on(0.25)] == ["miss", "miss"]
    assert on(-0.25, half=0.2) == "unclear"


def test_a_miss_of_one_seed_is_unclear_and_that_of_two_is_a_miss() -> None:
    def with_large(count: int) -> list[list[float]]:
        """Return sizes of 24 seeds that do not grow, but for `count` large ones, which shrink to the others' size."""
        return [[20.0 ** (1 - at / 3) if seed < count else 1.0 for seed in range(24)] for at in range(len(SCALES))]

    one, two = line(with_large(1)), line(with_large(2))
    assert (one.verdict, two.verdict) == ("unclear", "miss")
    assert (one.high or 0.0) < -0.15  # the interval alone would say that it misses
    broken = with_large(1)
    broken[-1][0] = math.nan
    assert line(broken).verdict == "miss"  # a size that is not finite, of one seed or not
    assert line([[1.0] * 3, [4.0] * 3, [0.0] * 3, [8.0] * 3], 1.0).verdict == "miss"  # and an exact zero of all seeds


def test_too_few_scales_decide_nothing_and_their_order_does_not_matter() -> None:
    two = seen(power(0.0))[:2]
    (out,) = fit(two, [Prediction(quantity="change", role="router", exponent=0.0, source="")])
    assert (out.slope, out.verdict) == (None, "unclear")
    observations = seen(power(-1.0))
    assert fit(observations[::-1], []) == fit(observations, [])


def test_the_first_prediction_that_is_about_a_step_counts() -> None:
    common = {"quantity": "change", "role": "router", "source": ""}
    found = [
        Prediction(**common, exponent=0.5, last=1),
        Prediction(**common, exponent=0.0, first=1, last=2),
        Prediction(quantity="change", role="readout", exponent=7.0, source=""),
    ]
    lines = fit([observation for step in range(4) for observation in seen(power(0.0), step=step)], found)
    assert [fitted.predicted for fitted in lines] == [0.5, 0.5, 0.0, None]


def test_over_layers_is_an_rms_and_leaves_what_stands_outside() -> None:
    inside = [*seen([[3.0, 3.0]] * 4, layer=0), *seen([[4.0, 0.0]] * 4, layer=1)]
    out = over_layers(inside)
    assert [fitted.layer for fitted in out] == [None] * 4
    assert out[0].values == pytest.approx((math.sqrt(12.5), math.sqrt(4.5)))
    assert over_layers([*inside, *seen([[1.0, 1.0]] * 4)]) == []


# Numbers that a check shows at every scale: means of shares, RMS of sizes, and slopes that leave out exact zeros.

KINDS: dict[str, Kind] = {"entropy": "share", "logits": "size"}


def measured(measure: str, scale: float, *values: float, layer: int | None = None, step: int = 0) -> Observation:
    return Observation(quantity=measure, role="router", layer=layer, step=step, scale=scale, values=values)


def test_a_share_is_a_mean_and_a_size_an_rms_with_a_slope() -> None:
    shares = [measured("entropy", scale, 0.2, 0.4) for scale in SCALES]
    share, size = by_scale(shares + [measured("logits", scale, scale, 7 * scale) for scale in SCALES], KINDS)
    assert share.values == pytest.approx([0.3] * 4)
    assert share.slope is None
    assert size.values == pytest.approx([5 * scale for scale in SCALES])
    assert size.slope == pytest.approx(1.0)


def test_exact_zeros_are_left_out_and_said() -> None:
    sizes = by_scale([measured("logits", scale, 0.0 if scale == 32 else scale) for scale in SCALES], KINDS)
    assert sizes[0].dropped == (32.0,)
    assert sizes[0].slope == pytest.approx(1.0)
    assert any("+1.00 without 32" in line for line in as_text(sizes, "width"))


def test_a_share_that_no_seed_has_is_no_number_in_json() -> None:
    found = by_scale([measured("entropy", scale, math.nan, 0.5 if scale > 32 else math.nan) for scale in SCALES], KINDS)
    assert math.isnan(found[0].values[0])
    (data,) = as_data(found)
    assert data["values"] == [[None, 0.5, 0.5, 0.5]]


def test_blocks_are_joined_as_their_kind_says_and_the_text_has_the_first_and_the_last_step() -> None:
    both = [measured(name, 32.0, size, layer=layer) for layer, size in ((0, 1.0), (1, 7.0)) for name in KINDS]
    joined = {each.quantity: each.values for each in over_blocks(both, KINDS)}
    assert joined == {"entropy": (4.0,), "logits": (5.0,)}
    found = by_scale([measured("entropy", 32.0, step / 10, step=step) for step in range(4)], KINDS)
    lines = as_text(found, "width")
    assert [line.split()[2:4] for line in lines[2:]] == [["0", "0"], ["3", "0.3"]]
    assert as_text([], "width") == []


def test_a_measure_that_a_scale_lacks_has_an_empty_place_there() -> None:
    """As the margin of a router at a shape all of whose experts are active."""
    margins = [measured("entropy", scale, 0.25, step=step) for step in (0, 1) for scale in SCALES[step + 1 :]]
    found = by_scale(
        margins + [measured("logits", scale, 1.0, step=step) for step in (0, 1) for scale in SCALES], KINDS
    )
    margin, logits = as_data(found)
    assert margin["scales"] == logits["scales"] == list(SCALES)
    assert margin["values"] == [[None, 0.25, 0.25, 0.25], [None, None, 0.25, 0.25]]
    lines = as_text(found, "width")
    assert lines[1].split()[3:7] == ["32", "64", "128", "256"]
    assert lines[2].split() == ["router", "entropy", "0", "0.25", "0.25", "0.25"]
    assert lines[2].index("0.25") >= lines[1].index("64")  # below its own scale


def test_equal_numbers_of_different_measures_are_both_shown_but_one_entropy_is_enough() -> None:
    kinds: dict[str, Kind] = dict.fromkeys(("entropy_of_all", "entropy_of_active", "tied", "lowest"), "share")
    values = {"entropy_of_all": 0.5, "entropy_of_active": 0.5, "tied": 0.0, "lowest": 0.0}
    found = by_scale([measured(name, scale, value) for name, value in values.items() for scale in SCALES], kinds)
    assert [line.split()[1] for line in as_text(found, "width")[2:]] == ["entropy_of_all", "tied", "lowest"]
    other = by_scale(
        [measured(name, 32.0, at) for at, name in enumerate(("entropy_of_all", "entropy_of_active"))], kinds
    )
    assert [line.split()[1] for line in as_text(other, "width")[2:]] == ["entropy_of_all", "entropy_of_active"]
