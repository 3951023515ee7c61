"""What `import hpxfer` offers: every public name resolves, says what it is, and is seen by type checkers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hpxfer
from hpxfer.registry import KINDS, registry

FILE = Path(hpxfer.__file__)


@pytest.mark.parametrize("name", hpxfer.__all__)
def test_a_public_name_says_what_it_is(name: str) -> None:
    found = getattr(hpxfer, name)
    assert found.__doc__
    assert name in dir(hpxfer)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        hpxfer.nothing  # noqa: B018


def test_type_checkers_see_every_public_name() -> None:
    (block,) = [node for node in ast.parse(FILE.read_text()).body if isinstance(node, ast.If)]
    imported = {
        alias.asname: f"{node.module}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == hpxfer._HOME
    assert (FILE.parent / "py.typed").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_extension_has_a_function_that_registers(kind: str) -> None:
    assert callable(getattr(hpxfer, f"register_{kind.replace(' ', '_')}"))
    assert registry(kind).kind == kind
