"""Shapes: what is legal, how they are read and named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hpxfer.errors import HpxferError
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


@pytest.mark.parametrize(
    ("dims", "problem"),
    [
        (
            {"width": 132, "head_dim": 33},
            "width must be a multiple of 8 (rows of whole 16-byte units), got 132",
        ),
        ({"expert_width": 2730}, "expert_width must be a multiple of 8 (rows of whole 16-byte units), got 2730"),
    ],
)
def test_the_trainer_wants_whole_units_and_a_users_own_model_need_not_have_them(
    dims: dict[str, int], problem: str
) -> None:
    shape = dataclasses.replace(SHAPE, **dims)
    assert check_shape(shape) is None
    assert check_trainable(shape) == problem


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
            {**LEGAL, "steps": 9},
            "here: batch_tokens and steps belong together, got batch_tokens 0 and steps 9; give both or none",
        ),
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


def test_load_shape_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    with pytest.raises(HpxferError) as caught:
        load_shape(path)
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory"


def test_numbers_of_any_length_are_refused_with_a_line(tmp_path: Path) -> None:
    file = tmp_path / "shape.json"
    file.write_text(f'{{"width": {"7" * 50_000}, "depth": 2, "head_dim": 32}}')
    with pytest.raises(HpxferError, match=r"^\S+shape\.json: width must be at most 1000000000, got 7+\.\.\.$"):
        load_shape(file)
    with pytest.raises(HpxferError, match=r"^here: width must be at least 1, got a very long int$"):
        shape_from_mapping({"width": -(10**5000), "depth": 2, "head_dim": 32}, "here")
    with pytest.raises(HpxferError, match=r"^here: x{77}\.\.\.: unknown key; legal: batch_tokens"):
        shape_from_mapping({"x" * 50_000: 1}, "here")
