"""Exponents combine as sizes do; a reason goes through, and an exact zero stays one."""

from __future__ import annotations

import pytest

from hpxfer.coordinates.sizes import NO_INVERSE, ZERO, Size, grows, largest, led_by, power_of, product, sum_of


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((1.0, -0.5), 0.5), ((), 0.0), ((1.0, ZERO), ZERO), ((1.0, "why", "other"), "why"), ((ZERO, "why"), "why")],
)
def test_a_product_adds_exponents(sizes: tuple[Size, ...], expected: Size) -> None:
    assert product(*sizes) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((0.5, 0.5), 0.5), ((0.5, ZERO), 0.5), ((ZERO, ZERO), ZERO), ((0.5, 0.0), "unlike"), ((0.5, "why"), "why")],
)
def test_a_sum_needs_parts_that_scale_alike(sizes: tuple[Size, ...], expected: Size) -> None:
    assert sum_of("unlike", *sizes) == expected


@pytest.mark.parametrize(
    ("leader", "others", "expected"),
    [
        (0.0, (-0.5, ZERO), 0.0),
        (0.0, (0.0,), 0.0),
        (0.0, (0.5,), "led"),
        (0.0, ("why",), "why"),
        ("why", (0.5,), "why"),
    ],
)
def test_a_leader_outgrows_the_rest_or_there_is_none(leader: Size, others: tuple[Size, ...], expected: Size) -> None:
    assert led_by(leader, *others, why="led") == expected


def test_powers_growth_and_the_largest() -> None:
    assert power_of(0.5, -1) == -0.5
    assert power_of(ZERO, -1) == NO_INVERSE
    assert power_of("why", 2) == "why"
    assert largest(-1.0, 0.5, ZERO) == 0.5
    assert largest(-1.0, "why") == "why"
    assert [grows(size) for size in (0.5, 0.0, -0.5, ZERO, "why")] == [True, False, False, False, False]
