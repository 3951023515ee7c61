"""How a user may spell a shape, and what a spelling that fits none or several is answered with."""

from __future__ import annotations

import pytest

from hpxfer.errors import HpxferError
from hpxfer.verdict.shape_names import AxisShape, find_shape

SHAPES = [
    AxisShape(axis=axis, scale_name=scale_name, scale=scale, shape=shape)
    for axis, scale_name, scale, shape in (
        ("width", "width", 32.0, "w32 d2 E4A1 h32"),
        ("width", "width", 64.0, "w64 d2 E4A1 h64"),
        ("experts", "num_experts", 4.0, "w32 d2 E4A1 h32"),
        ("experts", "num_experts", 8.0, "w32 d2 E8A2 h32"),
        ("expert_ratio", "expert_ratio", 8.0, "w32 d2 E4A1 h256"),
        ("joint", "hidden weights", 327680.0, "w64 d4 E8A2 h64"),
    )
]


@pytest.mark.parametrize(
    ("spelled", "shape"),
    [
        ("w64", "w64 d2 E4A1 h64"),
        ("width 64", "w64 d2 E4A1 h64"),
        ("width=64", "w64 d2 E4A1 h64"),
        ("Width64", "w64 d2 E4A1 h64"),
        ("w64 d2 E4A1 h64", "w64 d2 E4A1 h64"),
        ("W64D4E8A2H64", "w64 d4 E8A2 h64"),
        ("num_experts 8", "w32 d2 E8A2 h32"),
        ("experts 8", "w32 d2 E8A2 h32"),
        ("expert_ratio=8", "w32 d2 E4A1 h256"),
        ("joint 327680", "w64 d4 E8A2 h64"),
        ("hidden weights 327680", "w64 d4 E8A2 h64"),
    ],
)
def test_every_spelling_finds_its_shape(spelled: str, shape: str) -> None:
    assert find_shape(SHAPES, spelled, "--base").shape == shape


def test_the_base_of_several_axes_is_one_shape() -> None:
    assert find_shape(SHAPES, "w32 d2 E4A1 h32", "--base").name == "width 32"


def test_a_shape_that_is_not_there_lists_those_that_are() -> None:
    with pytest.raises(HpxferError) as error:
        find_shape(SHAPES, "w96", "--base")
    assert str(error.value) == (
        "--base: must be a shape of the sweep, got 'w96'; the shapes are width 32, width 64, num_experts 4, "
        "num_experts 8, expert_ratio 8, w64 d4 E8A2 h64"
    )


def test_each_name_that_the_message_lists_works() -> None:
    with pytest.raises(HpxferError) as error:
        find_shape(SHAPES, "w96", "--base")
    listed = str(error.value).partition("the shapes are ")[2].split(", ")
    found = {find_shape(SHAPES, name, "--base").shape for name in listed}
    assert found == {shape.shape for shape in SHAPES}


def test_a_spelling_of_several_shapes_asks_for_the_whole_name() -> None:
    with pytest.raises(HpxferError, match="got 'e8', which names several; give w32 d2 E8A2 h32 or w32 d2 E4A1 h256"):
        find_shape(SHAPES, "e8", "--base")


def test_shapes_of_one_scale_are_listed_by_their_whole_names() -> None:
    def arm(scale: float, shape: str) -> AxisShape:
        return AxisShape(axis="moe", scale_name="active_width", scale=scale, shape=shape)

    shapes = [arm(8, "D128"), arm(16, "E8A4 h32"), arm(16, "E16A8 h16")]
    with pytest.raises(HpxferError, match=r"the shapes are active_width 8, E8A4 h32, E16A8 h16$"):
        find_shape(shapes, "w96", "--base")
