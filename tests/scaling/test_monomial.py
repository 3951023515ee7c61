"""Monomials: the algebra that the tables are written in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.scaling.monomial import ONE, ZERO, Monomial, depth, width

NAMES = ("width", "depth", "experts")
EXPONENTS = st.sampled_from((-2.0, -1.0, -0.5, 0.0, 0.5, 1.0))
MONOMIALS = st.dictionaries(st.sampled_from(NAMES), EXPONENTS).map(lambda powers: Monomial(tuple(powers.items())))
RATIOS = st.fixed_dictionaries({name: st.floats(0.1, 10) for name in NAMES})


def close(left: float, other: float) -> bool:
    return math.isclose(left, other, rel_tol=1e-12)


@given(MONOMIALS, MONOMIALS, RATIOS)
def test_operators_act_on_values(a: Monomial, b: Monomial, at: dict[str, float]) -> None:
    assert close((a * b)(at), a(at) * b(at))
    assert close((a * b**-1)(at), a(at) / b(at))
    assert close((a**-0.5)(at), a(at) ** -0.5)


@given(MONOMIALS)
def test_every_monomial_is_one_where_nothing_changed(a: Monomial) -> None:
    assert a(dict.fromkeys(NAMES, 1.0)) == 1.0


@given(MONOMIALS, RATIOS)
def test_zero_is_exact(a: Monomial, at: dict[str, float]) -> None:
    assert ZERO * a == a * ZERO == ZERO**2 == ZERO
    assert (ZERO * a)(at) == 0.0


def test_powers_that_cancel_leave_one() -> None:
    assert width * width**-1 == ONE == width**0


def test_division_by_an_exact_zero_is_a_mistake_in_a_table() -> None:
    with pytest.raises(AssertionError, match="division by an exact zero"):
        ZERO**-1


@pytest.mark.parametrize(
    ("monomial", "text"),
    [
        (ONE, "1"),
        (ZERO, "0"),
        (width, "width"),
        (width**-0.5, "width^-0.5"),
        (width**-1 * depth**-1, "width^-1 depth^-1"),
        (width * depth, "width depth"),
    ],
)
def test_text(monomial: Monomial, text: str) -> None:
    assert str(monomial) == text
