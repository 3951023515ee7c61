"""Shapes, HPs and monomials: what is legal, how they are read, named and changed."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import DOTTED, POSITIVE

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import SCALARS, HPs, check_hp_name, check_hp_value
from hpxfer.scaling.monomial import ZERO, Monomial, depth, width
from hpxfer.scaling.shape import Shape, check_shape, check_trainable, load_shape, shape_from_mapping

LEGAL: dict[str, Any] = {
    "width": 128,
    "depth": 2,
    "num_experts": 8,
    "num_active": 2,
    "expert_width": 256,
    "head_dim": 32,
}
SHAPE = Shape(**LEGAL)


def test_derived_numbers() -> None:
    assert (SHAPE.query_heads, SHAPE.kappa, SHAPE.expert_ratio) == (4, 0.25, 2.0)


def test_label_and_dims() -> None:
    assert SHAPE.label() == "w128 d2 E8A2 h256"
    assert SHAPE.dims() == LEGAL
    assert dataclasses.replace(SHAPE, dense_width=512).dims() == {**LEGAL, "dense_width": 512}


@pytest.mark.parametrize(
    ("dims", "problem"),
    [
        ({}, None),
        ({"num_active": 8}, None),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"num_groups": 0}, "num_groups must be at least 1, got 0"),
        ({"num_shared": -1}, "num_shared must be at least 0, got -1"),
        (
            {"head_dim": 48},
            "width must be a multiple of head_dim, got width 128 and head_dim 48; "
            "take another head_dim, or give num_heads",
        ),
        ({"num_active": 9}, "num_active must be at most num_experts, got 9 of 8"),
    ],
)
def test_check_shape(dims: dict[str, int], problem: str | None) -> None:
    shape = dataclasses.replace(SHAPE, **dims)
    assert check_shape(shape) == problem
    assert check_trainable(shape) == problem


def test_the_trainer_wants_whole_units_and_a_users_own_model_need_not_have_them() -> None:
    for dims, name in (({"width": 132, "head_dim": 33}, "width"), ({"expert_width": 2730}, "expert_width")):
        shape, rule = dataclasses.replace(SHAPE, **dims), "must be a multiple of 8 (rows of whole 16-byte units)"
        assert check_shape(shape) is None
        assert check_trainable(shape) == f"{name} {rule}, got {dims[name]}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**LEGAL, "widht": 3}, "here: widht: unknown key; did you mean 'width'?"),
        ({**LEGAL, "width": 128.0}, "here: width: must be a whole number, got 128.0"),
        ({**LEGAL, "depth": True}, "here: depth: must be a whole number, got True"),
        ({"width": 128}, "here: must give depth"),
        (
            {**{key: value for key, value in LEGAL.items() if key != "head_dim"}, "num_heads": 2},
            "here: head_dim must be given with num_heads and kv_heads, got none; give it, or take these out",
        ),
        ({**LEGAL, "depth": 0}, "here: depth must be at least 1, got 0"),
        (
            {**LEGAL, "batch_tokens": 64},
            "here: batch_tokens and steps belong together, got batch_tokens 64 and steps 0; give both or none",
        ),
    ],
)
def test_shape_from_mapping_refuses(data: dict[str, Any], message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        shape_from_mapping(data, "here")
    assert str(caught.value) == message


def test_load_shape(tmp_path: Path) -> None:
    path = tmp_path / "shape.json"
    path.write_text(json.dumps({**LEGAL, "dense_width": 512}))
    assert load_shape(path) == dataclasses.replace(SHAPE, dense_width=512)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"width": 64, "depth": 2, "width": 128}', "not a JSON file: the key 'width' stands twice; keep one"),
        ("{", "not a JSON file: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[1]", "must hold one JSON object of dimensions, got list"),
        ('{"width": 8}', "must give depth"),
    ],
)
def test_load_shape_refuses(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "shape.json"
    path.write_text(text)
    with pytest.raises(HpxferError) as caught:
        load_shape(path)
    assert str(caught.value) == f"{path}: {problem}"
    path.unlink()
    with pytest.raises(HpxferError, match=r"shape\.json: cannot be read: No such file or directory"):
        load_shape(path)


def test_numbers_of_any_length_are_refused_with_a_line(tmp_path: Path) -> None:
    file = tmp_path / "shape.json"
    file.write_text(f'{{"width": {"7" * 50_000}, "depth": 2, "head_dim": 32}}')
    with pytest.raises(HpxferError, match=r"^\S+shape\.json: width must be at most 1000000000, got 7+\.\.\.$"):
        load_shape(file)
    with pytest.raises(HpxferError, match=r"^here: width must be at least 1, got a very long int$"):
        shape_from_mapping({"width": -(10**5000), "depth": 2, "head_dim": 32}, "here")
    with pytest.raises(HpxferError, match=r"^here: x{77}\.\.\.: unknown key; legal: batch_tokens"):
        shape_from_mapping({"x" * 50_000: 1}, "here")


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


RATIO_NAMES = ("width", "depth", "experts")
EXPONENTS = st.sampled_from((-2.0, -1.0, -0.5, 0.0, 0.5, 1.0))
MONOMIALS = st.dictionaries(st.sampled_from(RATIO_NAMES), EXPONENTS).map(lambda powers: Monomial(tuple(powers.items())))
RATIOS = st.fixed_dictionaries({name: st.floats(0.1, 10) for name in RATIO_NAMES})


def close(left: float, other: float) -> bool:
    return math.isclose(left, other, rel_tol=1e-12)


@given(MONOMIALS, MONOMIALS, RATIOS)
def test_operators_act_on_values(a: Monomial, b: Monomial, at: dict[str, float]) -> None:
    assert close((a * b)(at), a(at) * b(at))
    assert close((a * b**-1)(at), a(at) / b(at))
    assert close((a**-0.5)(at), a(at) ** -0.5)


@given(MONOMIALS)
def test_every_monomial_is_one_where_nothing_changed(a: Monomial) -> None:
    assert a(dict.fromkeys(RATIO_NAMES, 1.0)) == 1.0


@given(MONOMIALS, RATIOS)
def test_zero_is_exact(a: Monomial, at: dict[str, float]) -> None:
    assert ZERO * a == a * ZERO == ZERO**2 == ZERO
    assert (ZERO * a)(at) == 0.0


def test_division_by_an_exact_zero_is_a_mistake_in_a_table() -> None:
    with pytest.raises(AssertionError, match="division by an exact zero"):
        ZERO**-1


@pytest.mark.parametrize(
    ("monomial", "text"),
    [
        (width * width**-1, "1"),
        (ZERO, "0"),
        (width, "width"),
        (width**-0.5, "width^-0.5"),
        (width**-1 * depth**-1, "width^-1 depth^-1"),
        (width * depth, "width depth"),
    ],
)
def test_text(monomial: Monomial, text: str) -> None:
    assert str(monomial) == text
