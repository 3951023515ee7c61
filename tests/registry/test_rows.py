"""A registry: one set of rules for every extension point."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from hpxfer.errors import HpxferError
from hpxfer.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Color:
    name: str


RED = Color(name="red")


def colors() -> Registry[Color]:
    return Registry("color", {"red": f"{__name__}:RED"})


def test_a_row_of_hpxfer_is_imported_when_it_is_asked_for() -> None:
    found = Registry[Color]("color", {"red": "no_such_module:RED"})
    assert found.names() == ("red",)
    with pytest.raises(ModuleNotFoundError):
        found.get("red")
    assert colors().get("red") is sys.modules[__name__].RED


def test_a_user_s_row_is_one_like_the_others_and_knows_its_module() -> None:
    found = colors()
    row = found.register(Color(name="blue"))
    assert found.names() == ("red", "blue")
    assert found.rows() == (RED, row)
    assert (found.module("blue"), found.module("red")) == (__name__, None)


@pytest.mark.parametrize("name", ["red", "blue"])
def test_a_name_is_registered_once(name: str) -> None:
    found = colors()
    found.register(Color(name="blue"))
    with pytest.raises(HpxferError, match=f"color '{name}' is registered already, by .*; choose another name"):
        found.register(Color(name=name))


def test_an_unknown_name_gets_the_nearest_legal_one() -> None:
    with pytest.raises(HpxferError) as caught:
        colors().get("rde", "sweep.yaml: model.color")
    assert str(caught.value) == "sweep.yaml: model.color: unknown color 'rde'; did you mean 'red'?"


def test_what_a_module_registered_goes_with_it() -> None:
    found = colors()
    found.register(Color(name="blue"))
    Registry.remove_module(__name__)
    assert found.names() == ("red",)


def test_a_row_can_be_registered_for_a_while() -> None:
    found = colors()
    with found.registered(Color(name="blue")):
        assert "blue" in found
    assert "blue" not in found


@pytest.mark.parametrize("name", ["", "a b", "../x", 5, None])
def test_a_name_is_letters_digits_and_little_more(name: object) -> None:
    with pytest.raises(HpxferError, match="a row must have a name of letters, digits"):
        colors().register(Color(name=name))  # type: ignore[arg-type]


def test_what_has_no_name_is_no_row() -> None:
    with pytest.raises(HpxferError, match="got None of a str"):
        colors().register("red")  # type: ignore[arg-type]


def test_another_spelling_finds_the_row_and_is_no_name_of_its_own() -> None:
    found = Registry[Color]("color", {"red": f"{__name__}:RED"}, also={"rouge": "red"})
    assert "rouge" in found
    assert found.get("rouge") is found.get("red")
    assert (found.spelled("rouge"), found.names()) == ("red", ("red",))
    with found.registered(Color(name="rouge")) as mine:  # a user's row comes before a spelling
        assert found.get("rouge") is mine
