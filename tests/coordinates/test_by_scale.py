"""Numbers that a check shows at every scale: means of shares, RMS of sizes, and slopes that leave out exact zeros."""

from __future__ import annotations

import math

import pytest

from hpxfer.coordinates.by_scale import Kind, as_data, as_text, by_scale, over_blocks
from hpxfer.coordinates.measure import Observation

KINDS: dict[str, Kind] = {"entropy": "share", "logits": "size"}
SCALES = (32.0, 64.0, 128.0, 256.0)


def seen(measure: str, scale: float, *values: float, layer: int | None = None, step: int = 0) -> Observation:
    return Observation(quantity=measure, role="router", layer=layer, step=step, scale=scale, values=values)


def test_a_share_is_a_mean_and_a_size_an_rms_with_a_slope() -> None:
    found = by_scale(
        [seen("entropy", scale, 0.2, 0.4) for scale in SCALES]
        + [seen("logits", scale, scale, 7 * scale) for scale in SCALES],
        KINDS,
    )
    assert found[0].values == pytest.approx([0.3] * 4)
    assert found[0].slope is None
    assert found[1].values == pytest.approx([5 * scale for scale in SCALES])
    assert found[1].slope == pytest.approx(1.0)


def test_exact_zeros_are_left_out_and_said() -> None:
    sizes = by_scale([seen("logits", scale, 0.0 if scale == 32 else scale) for scale in SCALES], KINDS)
    assert sizes[0].dropped == (32.0,)
    assert sizes[0].slope == pytest.approx(1.0)
    assert any("+1.00 without 32" in line for line in as_text(sizes, "width"))


def test_a_share_that_no_seed_has_is_no_number_in_json() -> None:
    found = by_scale([seen("entropy", scale, math.nan, 0.5 if scale > 32 else math.nan) for scale in SCALES], KINDS)
    assert math.isnan(found[0].values[0])
    (data,) = as_data(found)
    assert data["values"] == [[None, 0.5, 0.5, 0.5]]


def test_blocks_are_joined_as_their_kind_says() -> None:
    both = [seen(name, 32.0, 1.0, layer=0) for name in KINDS] + [seen(name, 32.0, 7.0, layer=1) for name in KINDS]
    joined = {each.quantity: each.values for each in over_blocks(both, KINDS)}
    assert joined == {"entropy": (4.0,), "logits": (5.0,)}


def test_the_text_has_the_first_and_the_last_step() -> None:
    found = by_scale([seen("entropy", 32.0, step / 10, step=step) for step in range(4)], KINDS)
    lines = as_text(found, "width")
    assert [line.split()[2:4] for line in lines[2:]] == [["0", "0"], ["3", "0.3"]]
    assert as_text([], "width") == []


def test_a_measure_that_a_scale_lacks_has_an_empty_place_there() -> None:
    """As the margin of a router at a shape all of whose experts are active."""
    margins = [seen("entropy", scale, 0.25, step=step) for step in (0, 1) for scale in SCALES[step + 1 :]]
    found = by_scale(margins + [seen("logits", scale, 1.0, step=step) for step in (0, 1) for scale in SCALES], KINDS)
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
    found = by_scale([seen(name, scale, value) for name, value in values.items() for scale in SCALES], kinds)
    assert [line.split()[1] for line in as_text(found, "width")[2:]] == ["entropy_of_all", "tied", "lowest"]
    other = by_scale([seen(name, 32.0, at) for at, name in enumerate(("entropy_of_all", "entropy_of_active"))], kinds)
    assert [line.split()[1] for line in as_text(other, "width")[2:]] == ["entropy_of_all", "entropy_of_active"]
