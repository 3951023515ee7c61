"""YAML files: data, the line of every key, and messages that point at the fault."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import TEXT

from hpxfer.errors import HpxferError
from hpxfer.spec import yaml_file
from hpxfer.spec.yaml_file import KeyPath, key_path, parse_yaml, read_yaml, spell, write_yaml

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT

TEXT_FILE = """\
name: a   # a comment
axes:
  width:
    - 32
    - 64
  free: [{depth: 2}]
"""


# Texts that a reader of YAML 1.1 or 1.2 takes for something else unless they are quoted.
WORDS = (
    "1:20:30 1:20.5 yes No on off y 2020-01-01 0o17 0x1F 017 08 1e3 1_000 1_000.5 0b11 .inf -.INF .nan ~ null true "
    "<< = +1 -.5 1. *a &a %TAG --- ... \x85 \u2028"
)
TRAPS = st.sampled_from([*WORDS.split(" "), "2020-01-01 10:00:00", "", "- a", "!!bool x", "# a", "a: b", "a #b", "? a"])
TRAPPED = st.recursive(TRAPS | LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TRAPS | TEXT, inner))


@given(TRAPPED)
def test_no_text_reads_back_as_something_else(data: object) -> None:
    assert parse_yaml(write_yaml(data), "file").data == data


def test_what_is_written_is_quoted_for_a_reader_of_yaml_1_1_too() -> None:
    assert write_yaml(["1:20:30", "yes", "08", "1e3"]) == "- '1:20:30'\n- 'yes'\n- '08'\n- '1e3'\n"


# What is not listed as a number, a truth value or nothing is text, in YAML 1.2 as here.
TEXTS = "1e e5 inf 1:20:30 1:20.5 190:20 0b11 yes no on Off y nUll 2020-01-01 2020-13-01 = 1_000.5 2_"
VALUES = {
    **{text: text for text in (*TEXTS.split(), "2001-12-14t21:59:43.10-05:00")},
    "1e-12": 1e-12,
    "1E5": 1e5,
    "-.5e3": -500.0,
    "2.e1": 20.0,
    "0.5": 0.5,
    ".inf": float("inf"),
    "!!float 5": 5.0,
    "12": 12,
    "010": 10,
    "09": 9,
    "0o17": 15,
    "0x1F": 31,
    "+7": 7,
    "!!int '0x1F'": 31,
    "1" + 249 * "0": 10**249,
    "2_000_000_000": 2_000_000_000,
    "True": True,
    "FALSE": False,
    "~": None,
    "Null": None,
    "'1e-12'": "1e-12",
    "!!str 5": "5",
}


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_numbers(text: str, value: object) -> None:
    got = parse_yaml(f"x: {text}", "file").data["x"]
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ((), "file:1"),
        (("name",), "file:1: name"),
        (("axes", "width"), "file:3: axes.width"),
        (("axes", "width", 1), "file:5: axes.width[1]"),
        (("axes", "free", 0, "depth"), "file:6: axes.free[0].depth"),
        (("axes", "widht"), "file:2: axes.widht"),  # not in the file: the line of what it would stand in
        (("axes", "width", 7), "file:3: axes.width[7]"),
        (("hps", "lr"), "file:1: hps.lr"),
    ],
)
def test_where(path: KeyPath, where: str) -> None:
    assert parse_yaml(TEXT_FILE, "file").where(path) == where


def test_an_empty_file_has_no_lines() -> None:
    file = parse_yaml("# nothing\n", "file")
    assert (file.data, file.where(("name",))) == (None, "file: name")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n  b: 1\n  b: 2\n", "file:3: {}a.b: the key stands twice, first on line 2, got '  b: 2'"),
        ("- {x: 1}\n- {x: 1, x: 2}\n", "file:2: {}[1].x: the key stands twice, first on line 2"),
        ("a: [1\nb: 2\n", "file:2: {}expected ',' or ']', but got ':', got 'b: 2'; while parsing a flow "),
        ("a: 1\nb: [\n", "file:3: {}expected the node content, but found '<stream end>', got the end of"),
        ("a:\n\tb: 1\n", "file:2: {}found character '\\t' that cannot start any token, got '\\tb: 1'"),
        ("a: *x\n", "file:1: {}found undefined alias 'x', got 'a: *x'"),
        ("a: 1\nb: \x01\n", "file:2: {}unprintable character 0x1"),
        ("a: 1\nb: &x [*x]\n", "file:2: {}more than 100 levels (does an alias hold itself?)"),
        ("a:\n - " + "[" * 2000, "file:2: {}more than 100 levels"),
        ("a:\n- b: !!python/name:os.system\n", "file:2: {}unknown tag python/name:os.system, got '- b: !!py"),
        ("a: 1\nb: !!bool x\n", "file:2: {}expected true or false, got 'b: !!bool x'"),
        ("a: !!int 1:20\n", "file:1: {}expected a whole number of at most 250 digits, got 'a: !!int 1:20'"),
        ("a: !!float [1]\n", "file:1: {}expected a scalar node, but found sequence, got 'a: !!f"),
        ("a: !!float x\n", "file:1: {}expected a number, got"),
        ("a: !!null x\n", "file:1: {}expected null, got"),
        ("a: !!timestamp x\n", "file:1: {}unknown tag timestamp"),
        ("a: !mine {b: 1}\n", "file:1: {}unknown tag !mine"),
        ("!!set {a: 1}\n", "file:1: {}unknown tag set"),
        ("a: <<\n", "file:1: {}unknown tag merge"),
        ('a: 1\nb: "\\UFFFFFFFF"\n', "file:2: {}a number or an escape is too large"),
        (f"%YAML 1.{'2' * 5000}\n---\na: 1\n", "file:1: {}a number or an escape is too large"),
        (f"a: *{'x' * 50_000}\n", "file:1: {}found undefined alias"),
        ('a: 1\nb: "x\\ud800"\n', "file:2: {}half of a character, got"),
        (f"a: 1\nb: {'7' * 5000}\n", "file:2: {}expected a whole number of at most 250 digits, got 'b: 777"),
        (f"? {'7' * 5000}\n: 1\n", "file:1: {}expected a whole number of at most 250 digits"),
        ("? [1, 2]\n: 1\n", "file:1: {}found unhashable key"),
    ],
)
def test_broken_text(text: str, message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parse_yaml(text, "file")
    assert str(caught.value).startswith(message.format("not valid YAML: "))
    assert len(str(caught.value)) < 400


def test_a_key_in_two_places_and_an_anchor_used_twice_are_legal() -> None:
    assert parse_yaml("a: {x: 1}\nb: {x: 2}\nx: 3\n", "file").data == {"a": {"x": 1}, "b": {"x": 2}, "x": 3}
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", "file").data == {"a": {"b": 1}, "c": {"b": 1}}
    assert parse_yaml("a: &x {b: 1}\nc: {<<: *x, d: 2}\n", "file").data["c"] == {"b": 1, "d": 2}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, binary, large = (tmp_path / f"{name}.yaml" for name in ("none", "binary", "large"))
    binary.write_bytes(b"a: \xff\n")
    large.write_text("a: 1\n" + "#" * 2**21)
    for path, said in (
        (missing, "cannot be read: No such file or directory"),
        (binary, "must be UTF-8 text: invalid start byte at byte 3"),
        (large, "cannot be read: must have at most 2 MiB, got more"),
    ):
        with pytest.raises(HpxferError) as caught:
            read_yaml(path)
        assert str(caught.value).startswith(f"{path}: {said}")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/stdin", "fifo", "socket"])
def test_only_regular_files_are_read(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("socket")
        with pytest.raises(HpxferError, match=f"^{path}: (cannot be read|must be)"):
            read_yaml(path)


@pytest.mark.parametrize("text", ["[" + "1," * 300 + "]", "".join(f"k{at}: 1\n" for at in range(110))])
def test_a_file_of_many_values_is_not_read_to_its_end(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_yaml(text, "file").data
    monkeypatch.setattr(yaml_file, "MAX_VALUES", 200)
    with pytest.raises(HpxferError, match=r"^file:\d+: not valid YAML: more than 200 values"):
        parse_yaml(text + "}" * 1000, "file")


def test_nested_aliases_are_not_unfolded_for_ever() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 9))
    with pytest.raises(HpxferError, match=r"more than 120000 values .are aliases nested"):
        parse_yaml(text, "laughs.yaml")


@pytest.mark.parametrize("path", [("a",), ("axes", "moe", "shapes", 2, "data", "source"), ("a", 1, 22, "b")])
def test_a_spelled_key_path_reads_back(path: KeyPath) -> None:
    assert key_path(spell(path)) == path
    assert (spell(("a", 0, 1, "b.c")), spell(())) == ("a[0][1].b.c", "")
