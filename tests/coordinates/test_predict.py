"""From monomials to exponents along a path."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpxfer.coordinates.measure import Prediction
from hpxfer.coordinates.predict import predict
from hpxfer.scaling.claims import Claim
from hpxfer.scaling.evaluate import ratios
from hpxfer.scaling.monomial import ONE, ZERO, Monomial, active, depth, experts, width
from hpxfer.scaling.shape import Shape

BASE = Shape(width=32, depth=2, num_experts=4, num_active=2, expert_width=32, head_dim=8)


def along(size: Monomial | None, *changes: dict[str, int], **claim: object) -> Prediction:
    shapes = [BASE, *(replace(BASE, **change) for change in changes)]
    whole = Claim(quantity="activation", role="moe", size=size, source="a paper", **claim)  # type: ignore[arg-type]
    scales = [float(shape.width * shape.num_experts) for shape in shapes]
    return predict([whole], scales, [ratios(BASE, shape) for shape in shapes])[0]


WIDTHS = ({"width": 64}, {"width": 128})
JOINT = ({"width": 64, "num_experts": 8, "num_active": 4}, {"width": 128, "num_experts": 16, "num_active": 8})


def test_exponents_follow_the_path() -> None:
    assert along(width**-0.5, *WIDTHS).exponent == -0.5
    assert along(depth**-1, *WIDTHS).exponent == 0
    assert along(width * experts**-1, *JOINT).exponent == 0
    assert along(width * active, *JOINT).exponent == pytest.approx(1.0)  # the scale moves as width * experts
    assert along(experts**0.5, *JOINT).exponent == pytest.approx(0.25)


def test_a_monomial_that_is_no_power_of_the_scale_gets_the_slope_that_would_be_measured() -> None:
    found = along(experts, {"width": 64}, {"width": 64, "num_experts": 16, "num_active": 8})
    assert found.exponent is not None
    assert 0 < found.exponent < 1


def test_zero_is_a_claim_and_none_is_not() -> None:
    assert (along(ZERO, *WIDTHS).zero, along(ZERO, *WIDTHS).exponent) == (True, None)
    assert (along(None, *WIDTHS).zero, along(None, *WIDTHS).exponent) == (False, None)


def test_a_claim_is_not_made_where_what_it_holds_still_moves() -> None:
    held = along(ONE, *WIDTHS, still=("width",), otherwise="two parts")
    assert (held.exponent, held.source) == (None, "two parts")
    assert along(ONE, *WIDTHS, still=("experts",), otherwise="two parts").exponent == 0
    sparser = along(ONE, {"num_experts": 8}, {"num_experts": 16}, still=("kappa",), otherwise="sparse")
    assert (sparser.exponent, sparser.source) == (None, "sparse")
    assert along(ONE, *JOINT, still=("kappa",), otherwise="sparse").exponent == 0


def test_steps_are_kept() -> None:
    found = along(ONE, *WIDTHS, first=2, last=5)
    assert (found.first, found.last, found.source) == (2, 5, "a paper")
