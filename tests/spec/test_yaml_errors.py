"""YAML errors in plain words: the line, the rule, what stands there and the fix, and no word of the parser's."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import hpxfer
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_text import SWEEP

from hpxfer.errors import HpxferError
from hpxfer.spec.yaml_file import parse_yaml

COLUMN = "a key must start in the same column as the keys beside it"
PAIR = "a line must be a key, a colon and a value"
QUOTE = "a quote must be closed"
AFTER = "a value must end where its quote or bracket closes"

CASES = [
    # Indentation.
    ("a:\n\tb: 1\n", 2, "a line must be indented with spaces, got '\\tb: 1'; replace each tab"),
    ("a: 1\n \tb: 2\n", 2, "a line must be indented with spaces"),
    ("a:\n\t- 1\n", 2, "a line must be indented with spaces"),
    ("a: 1\nb:\t\t- 2\n", 2, "a value must not start with a tab"),
    ("a: x\n  b: 1\n", 2, f"{COLUMN}, got '  b: 1'; put 0 spaces before it, as lines above have"),
    ("a:\n    b: 1\n  c: 2\n", 3, f"{COLUMN}, got '  c: 2'; put 0 or 4 spaces before it"),
    ("a:\n  - b: 1\n   c: 2\n", 3, f"{COLUMN}, got '   c: 2'; put 0 or 2 or 4 spaces before it"),
    ("a: 1\n- b\n", 2, "an entry of a list must stand below a key, not beside keys, got '- b'"),
    ("- a\nb: 1\n", 2, "a line among the entries of a list must start with `- `, got 'b: 1'"),
    ("a: - 1\n", 1, "an entry of a list must start its own line, got 'a: - 1'"),
    # Colons.
    ("a: b: c\n", 1, "a value must not hold a colon and a space, got 'a: b: c'; put the value into quotes"),
    ("a: 1\nmodel\nb: 2\n", 2, f"{PAIR}, got 'model'; add the colon after the key"),
    ("model\n  a: 1\n", 1, f"{PAIR}, got 'model'"),
    ("a: 1\nmodel  # the base\n", 2, f"{PAIR}, got 'model  # the base'"),
    ("a: 1\nb:2\nc: 3\n", 2, "a colon must be followed by a space, got 'b:2'; write 'b: 2'"),
    ("a:1\nb: 2\n", 1, "a colon must be followed by a space, got 'a:1'; write 'a: 1'"),
    # Brackets.
    ("a: [1, 2\nb: 2\n", 1, "a bracket [ must be closed with ], got 'a: [1, 2'; add ] at the end"),
    ("a: [1, 2", 1, "a bracket [ must be closed with ], got 'a: [1, 2'"),
    ("a: 1\nb: [\n\n\n", 2, "a bracket must be closed, got 'b: ['"),
    ("a: {b: 1\nc: 2\n", 1, "a bracket { must be closed with }, got 'a: {b: 1'"),
    ("a: {b: [1, 2],\n", 1, "a bracket must be closed, got 'a: {b: [1, 2],'"),
    ("a: {b: 1]\n", 1, "what { opens must be closed with }, got 'a: {b: 1]'; write } there"),
    ("a: [1}\n", 1, "what [ opens must be closed with ], got 'a: [1}'; write ] there"),
    ("a: {b: 1 c: 2}\n", 1, "values between { and } must have commas between them, got 'a: {b: 1 c: 2}'"),
    ("a: [1, , 2]\n", 1, "a comma must stand between two values, got 'a: [1, , 2]'"),
    ("a: ]\n", 1, "a bracket ] must have an opening one before it, got 'a: ]'"),
    ("a: {b: 1}}\n", 1, "a bracket } must have an opening one before it, got 'a: {b: 1}}'"),
    ("a: [1] x\n", 1, f"{AFTER}, got 'a: [1] x'"),
    ("a: 'x', 'y'\n", 1, "a comma must stand between brackets"),
    # Quotes.
    ('a: "b\nc: 1\n', 1, f"{QUOTE}, got 'a: \"b'; add the closing quote"),
    ("x: 1\na: 'b\nc: 1\n", 2, f'{QUOTE}, got "a: \'b"'),
    ('"a: 1\nb: 2\n', 1, QUOTE),
    ('a: "b\nc: "d"\n', 1, f"{QUOTE}, got 'a: \"b'"),
    ("a: 'it's'\n", 1, f"{AFTER}, got \"a: 'it's'\"; put the whole value into other quotes"),
    ('a: "C:\\data"\n', 1, "a backslash between double quotes must begin an escape"),
    ('a: "\\xZZ"\n', 1, "a backslash between double quotes must begin an escape"),
    # Letters that begin something else.
    ("a: @x\n", 1, "a value must not start with @, got 'a: @x'; put the value into quotes"),
    ("a: 1\nb: %x\n", 2, "a value must not start with %, got 'b: %x'"),
    ("%x\na: 1\n", 1, "a line must not start with %, got '%x'"),
    ("a: `x`\n", 1, "a value must not start with `, got 'a: `x`'"),
    ("a: *.bin\n", 1, "a value that starts with * is the name of another value, or a tag, got 'a: *.bin'"),
    ("a: *x\n", 1, "a value that starts with * repeats the value that & gave this name before, and none has it"),
    ("a: && b\n", 1, "a value that starts with & is the name of another value"),
    ("a: !x!y 1\n", 1, "a value that starts with ! is the name of another value, or a tag"),
    ("a: !\t1\n", 1, "a value that starts with ! is the name of another value, or a tag"),
    ("%YAML 3.0\n---\na: 1\n", 1, "a line must not start with %, got '%YAML 3.0'"),
    ("%YAML x\n---\na: 1\n", 1, "a line must not start with %, got '%YAML x'"),
    ("a: |x\n", 1, "a value that starts with | is a text of several lines, got 'a: |x'"),
    ("a: >0.1\n", 1, "a value that starts with > is a text of several lines, got 'a: >0.1'"),
    # Documents and keys.
    ("a: 1\n---\nb: 2\n", 2, "a file must hold one document, got '---'"),
    ("[1]\nb: 2\n", 2, "nothing may follow the value that the file began with, got 'b: 2'"),
    ("a: {{name}}\n", 1, "a key must be text, got 'a: {{name}}'"),
    ("a: 1\n? [b]\n: 2\n", 2, "a key must be text, got '? [b]'"),
]
OF_THE_PARSER = ("<", "token", "block mapping", "scalar", "stream", "not allowed here", "unhashable", "simple key")


@pytest.mark.parametrize(("text", "line", "words"), CASES, ids=[repr(text) for text, _, _ in CASES])
def test_a_mistake_is_named_with_its_line_its_rule_and_a_fix(text: str, line: int, words: str) -> None:
    with pytest.raises(HpxferError) as caught:
        parse_yaml(text, "file")
    message = str(caught.value)
    assert message.startswith(f"file:{line}: not valid YAML: {words}")
    assert ", got " in message
    assert "; " in message
    assert not any(word in message.replace(text.strip(), "") for word in OF_THE_PARSER)


def test_a_long_line_is_cut() -> None:
    with pytest.raises(HpxferError) as caught:
        parse_yaml(f"a: [{'1, ' * 10_000}\n", "file")
    assert len(str(caught.value)) < 250


LINES = SWEEP.splitlines(keepends=True)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(SWEEP) - 1), st.integers(0, 3), st.text("[]{}:-'\"\t\n #%@`*&!|>,\\?x", max_size=3))
def test_any_slip_in_a_sweep_file_is_one_line_without_the_parsers_words(at: int, cut: int, put: str) -> None:
    """What the parser accepts may be a sweep or not; what it refuses is explained, and the line is one of the file."""
    text = SWEEP[:at] + put + SWEEP[at + cut :]
    try:
        parse_yaml(text, "file")
    except HpxferError as error:
        message = str(error)
        assert "\n" not in message
        if "not valid YAML" in message:
            assert 1 <= int(message.split(":")[1]) <= text.count("\n") + 1
            assert "this line cannot be read" not in message


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.replace("  width: [32, 64]", "   width: [32, 64\n"))
    code, _, err = hpxfer(capsys, "plan", path)
    assert code == 2
    assert err == (
        f"hpxfer: {path}:16: not valid YAML: a bracket [ must be closed with ], got '   width: [32, 64'; add ] at the "
        "end of the list or mapping\n"
    )
