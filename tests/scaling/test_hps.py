"""HPs: names, values and changes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import DOTTED, POSITIVE

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import SCALARS, HPs, check_hp_name, check_hp_value

NAMES = st.sampled_from(SCALARS) | DOTTED


@given(NAMES, POSITIVE)
def test_with_value_is_what_get_returns(name: str, value: float) -> None:
    check_hp_name(name)
    assert HPs(lr=0.1).with_value(name, value).get(name) == value


@given(st.dictionaries(NAMES, POSITIVE))
def test_the_order_of_changes_does_not_matter(values: dict[str, float]) -> None:
    forward = backward = HPs(lr=0.1)
    for name, value in values.items():
        forward = forward.with_value(name, value)
    for name, value in reversed(values.items()):
        backward = backward.with_value(name, value)
    assert forward == backward


def test_a_multiplier_of_one_is_none_at_all() -> None:
    assert HPs(lr=0.1).with_value("router.lr_mult", 1.0) == HPs(lr=0.1)
    changed = HPs(lr=0.1).with_value("router.lr_mult", 0.5)
    assert changed.multipliers == (("router.lr_mult", 0.5),)
    assert changed.with_value("router.lr_mult", 1.0) == HPs(lr=0.1)
    assert changed.get("router.init_mult") == 1.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lrr", "unknown HP; did you mean 'lr'?"),
        ("routr.lr_mult", "unknown role 'routr'; did you mean 'router'?"),
        ("router.lr_mul", "unknown multiplier 'lr_mul'; did you mean 'lr_mult'?"),
        ("router.", "unknown multiplier ''; legal: forward_mult, init_mult, lr_mult"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        check_hp_name(name)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lr", 0.0, "lr must be > 0, got 0"),
        ("init_scale", -1.0, "init_scale must be > 0, got -1"),
        ("lr", math.nan, "lr must be finite, got nan"),
        ("weight_decay", math.inf, "weight_decay must be finite, got inf"),
        ("weight_decay", -0.1, "weight_decay must be >= 0, got -0.1"),
        ("beta1", 1.0, "beta1 must be in [0, 1), got 1"),
        ("router.lr_mult", -0.5, "router.lr_mult must be >= 0, got -0.5"),
        ("lr", 1e39, "lr must be from 2^-126 to 2^127, as float32 holds it, got 1e+39"),
        ("router.lr_mult", 1e-39, "router.lr_mult must be from 2^-126 to 2^127, as float32 holds it, got 1e-39"),
    ],
)
def test_refused_values(name: str, value: float, message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        check_hp_value(name, value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", 2.0**-126), ("lr", 2.0**127), ("weight_decay", 0.0), ("beta1", 0.0), ("router.lr_mult", 0.0)],
)
def test_accepted_values(name: str, value: float) -> None:
    check_hp_value(name, value)
