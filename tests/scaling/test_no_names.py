"""Nothing that evaluates, explains, trains or computes a model knows the name of a paper or of its table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpxfer
from hpxfer.scaling.tables import PARAMETERIZATIONS

ROOT = Path(hpxfer.__file__).parent
GENERIC = ("evaluate", "coverage", "regimes", "conventions", "monomial", "table", "roles", "explain")
FILES = sorted(
    {
        *(ROOT / "scaling" / f"{name}.py" for name in GENERIC),
        ROOT / "prediction" / "explain.py",
        *(path for folder in ("train", "model") for path in (ROOT / folder).rglob("*.py")),
    }
)
# `sp` is the model as it stands, which trials at the base and the README's second table are: no paper's.
NAMES = [name for name in PARAMETERIZATIONS if name != "sp"]
FAMILIES = ("completep", "complete_mue", "mssp", "mup", "ntp")


def spoken(code: str) -> Iterator[str]:
    """Yield every identifier and every string of some code, but for docstrings, which name their sources."""
    tree = ast.parse(code)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        for field in ("id", "name", "attr", "arg", "module"):
            if isinstance(value := getattr(node, field, None), str):
                yield value


def names_in(code: str) -> set[str]:
    """Return the names of tables that some code speaks: whole in a string, or as a part of an identifier."""
    out = set()
    for text in spoken(code):
        words = set(re.split(r"[^a-z0-9-]+", text.lower()))
        out |= words & {*NAMES, *FAMILIES}
    return out


def test_no_table_is_named() -> None:
    assert len(FILES) > 40
    found = {str(path.relative_to(ROOT)): names_in(path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("if choice.name == 'mssp-iii': pass", {"mssp-iii"}),
        ("def completep_rows(): pass", {"completep"}),
        ("'''As mup does.'''\ndef f():\n    'Return what mssp-i gives.'", set()),
        ("spell = choice.name.removesuffix('-i')  # mup", set()),
    ],
)
def test_a_name_is_found(code: str, names: set[str]) -> None:
    assert names_in(code) == names
