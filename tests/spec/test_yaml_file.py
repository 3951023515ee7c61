"""YAML files: data, the line of every key, and messages that point at the fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import TEXT

from hpxfer.errors import HpxferError
from hpxfer.spec.yaml_file import KeyPath, parse_yaml, read_yaml, spell, write_yaml

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
DATA = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))

TEXT_FILE = """\
name: a   # a comment
axes:
  width:
    - 32
    - 64
  free: [{depth: 2}]
"""


@given(DATA)
def test_what_is_written_reads_back(data: object) -> None:
    assert parse_yaml(write_yaml(data), "file").data == data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-12", 1e-12),
        ("1E5", 1e5),
        ("-.5e3", -500.0),
        ("2.e1", 20.0),
        ("'1e-12'", "1e-12"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("12", 12),
        ("0.5", 0.5),
        (".inf", float("inf")),
        ("inf", "inf"),
    ],
)
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


def test_spell() -> None:
    assert spell(("a", 0, 1, "b.c")) == "a[0][1].b.c"
    assert spell(()) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "file:3: a: the key stands twice, first on line 1; keep one"),
        ("a:\n  b: 1\n  b: 2\n", "file:3: a.b: the key stands twice, first on line 2; keep one"),
        ("- {x: 1}\n- {x: 1, x: 2}\n", "file:2: [1].x: the key stands twice, first on line 2; keep one"),
        ("a: [1\nb: 2\n", "file:2: not valid YAML: expected ',' or ']', but got ':'"),
        ("a: b: c\n", "file:1: not valid YAML: mapping values are not allowed here"),
        ("a: *x\n", "file:1: not valid YAML: found undefined alias 'x'"),
        ("a: 1\n---\nb: 2\n", "file:2: not valid YAML: but found another document"),
        ("a: 1\n? [b]\n: 2\n", "file:2: not valid YAML: found unhashable key"),
        ("a: 2020-13-01\n", "file: not valid YAML: month must be in 1..12"),
        ("a: 1\nb: \x01\n", "file:2: not valid YAML: unprintable character 0x1"),
        ("a: &x [*x]\n", "file: not valid YAML: maximum recursion depth exceeded"),
        (
            "a: !!python/name:os.system\n",
            "file:1: not valid YAML: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/name:os.system'",
        ),
    ],
)
def test_broken_text(text: str, message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parse_yaml(text, "file")
    assert str(caught.value).startswith(message)


def test_the_same_key_in_two_places_is_no_duplicate() -> None:
    assert parse_yaml("a: {x: 1}\nb: {x: 2}\nx: 3\n", "file").data == {"a": {"x": 1}, "b": {"x": 2}, "x": 3}


def test_an_anchor_may_be_used_twice() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", "file").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, binary = tmp_path / "none.yaml", tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\n")
    with pytest.raises(HpxferError) as caught:
        read_yaml(missing)
    assert str(caught.value) == f"{missing}: cannot be read: No such file or directory"
    with pytest.raises(HpxferError) as caught:
        read_yaml(binary)
    assert str(caught.value) == f"{binary}: must be UTF-8 text: invalid start byte at byte 3"


def test_nested_aliases_are_not_unfolded_for_ever() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 9))
    with pytest.raises(HpxferError, match="at most 200000 values, got more; are aliases nested"):
        parse_yaml(text, "laughs.yaml")
