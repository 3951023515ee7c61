"""Placeholders: what stands in their place, and what is refused before anything runs."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpxfer.errors import HpxferError
from hpxfer.trainer import check, fill

VALUES = {"hp.lr": 0.1, "shape.width": 64, "gpus": 2, "config_json": "/runs/{x}/config.json", "arg.data": "a b; rm"}


def test_a_command_is_filled() -> None:
    argv = ["torchrun", "--nproc-per-node={gpus}", "--lr={hp.lr}x{shape.width}", "{config_json}", "{{}}{{hp.lr}}"]
    filled = ("torchrun", "--nproc-per-node=2", "--lr=0.1x64", "/runs/{x}/config.json", "{}{hp.lr}")
    assert fill(argv, VALUES) == filled


def test_a_value_stays_one_element() -> None:
    assert fill(["cat", "{arg.data}"], VALUES) == ("cat", "a b; rm")


@given(st.floats(allow_nan=False))
def test_a_number_reads_back_equal(value: float) -> None:
    assert float(fill(["{hp.lr}"], {"hp.lr": value})[0]) == value
    assert float(fill(["{hp.lr}"], {"hp.lr": np.float64(value)})[0]) == value


@given(st.text(st.sampled_from("{}abc. ")))
def test_python_agrees_on_braces(text: str) -> None:
    """Python's own format strings are the judge of what is a literal brace and of which names there are."""
    try:
        names = {name for _, name, spec, _ in string.Formatter().parse(text) if name is not None}
        expected = text.format_map(Any(names))
    except (ValueError, IndexError, AttributeError, KeyError):
        return
    legal = {name: f"<{name}>" for name in names}
    assert fill([text], legal)[0] == expected


class Any(dict):  # type: ignore[type-arg]
    """Gives each name in angle brackets; attributes are not looked up."""

    def __init__(self, names: set[str]) -> None:
        if any("." in name for name in names):
            raise KeyError(names)
        super().__init__({name: f"<{name}>" for name in names})


@pytest.mark.parametrize(
    ("element", "words"),
    [
        ("{hp.lrr}", "did you mean 'hp.lr'?"),
        ("--gpus={gpu}", "did you mean 'gpus'?"),
        ("{shape.depth}", "got '{shape.depth}'"),
        ("{}", "must use known names in braces, got '{}'"),
        ("{hp.lr", "a literal brace must be doubled"),
        ("hp.lr}", "write }}"),
        ("{hp.lr:.3f}", "must use known names"),
        ("{hp.__class__}", "must use known names"),
        ("a\0b", "zero byte"),
        (3, "must be text, got 3; quote it"),
    ],
)
def test_a_name_that_is_not_known(element: str, words: str) -> None:
    with pytest.raises(HpxferError) as refused:
        check(["python", element, "{hp.lr}"], ["width"], ["lr"])
    assert str(refused.value).startswith("trainer.command[1]: ")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_mistake_has_a_line() -> None:
    with pytest.raises(HpxferError) as refused:
        check(["{a}", "{b}{c}"], [], [])
    assert [line.partition(": ")[0] for line in str(refused.value).split("\n")] == [
        "trainer.command[0]",
        "trainer.command[1]",
        "trainer.command[1]",
    ]


@pytest.mark.parametrize("argv", [[], "python train.py", [""]])
def test_what_is_no_command(argv: list[str]) -> None:
    with pytest.raises(HpxferError, match="must"):
        check(argv, [], [])


def test_what_is_checked_can_be_filled() -> None:
    argv = ["{config_json}", "{hp.lr}", "{shape.width}", "{arg.data}"]
    check(argv, ["width"], ["lr"], ["data"])
    fill(argv, VALUES)
    with pytest.raises(HpxferError, match=r"command\[0\]: must use known names in braces, got '\{seed\}'"):
        fill(["{seed}"], VALUES)
