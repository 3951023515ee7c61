"""The examples in the docstrings of the public names: each name of `hpxfer.__all__` that a notebook calls has one."""

from __future__ import annotations

import doctest
from pathlib import Path

import pandas
import pytest
import torch

import hpxfer

ROOT = Path(__file__).parents[1]
# Plug-ins have their examples in docs/extend.md, check_module in docs/check.md. An exception needs none.
OTHERS = ("HpxferError", "check_module")
SHOWN = [name for name in hpxfer.__all__ if not name.startswith("register_") and name not in OTHERS]


@pytest.mark.parametrize("name", SHOWN)
def test_the_example_of_a_public_name_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    there = {"hpxfer": hpxfer, "torch": torch, "pandas": pandas, "folder": tmp_path}
    if name == "shape_of":
        there["transformers"] = pytest.importorskip("transformers")
    (test,) = doctest.DocTestFinder(recurse=False).find(getattr(hpxfer, name), name, globs=there)
    assert test.examples
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert "".join(said) == ""
