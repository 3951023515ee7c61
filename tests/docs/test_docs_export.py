"""The page on exports: its Python runs, and its tables are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from docs_markdown import blocks
from recipe_data import TARGET, data

from hpxfer.export import EXPORT_TARGETS, export, read_names
from hpxfer.recipe import Recipe
from hpxfer.spec.yaml_file import write_yaml

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def test_the_table_has_every_export_target() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (?:yes|no)", PAGE, re.MULTILINE)
    assert tuple(rows) == EXPORT_TARGETS.names()


def test_the_table_says_who_needs_names() -> None:
    needs = [row.name for row in EXPORT_TARGETS.rows() if row.names is None]
    assert re.findall(r"^\| `([\w-]+)` .* \| none[^|]* \|$", PAGE, re.MULTILINE) == needs


def test_the_keys_are_those_of_the_file() -> None:
    found = export(Recipe.parse(write_yaml(data())), "json", TARGET)
    table = PAGE.partition("## JSON")[2].partition("## Which")[0]
    named = {
        key for row in table.splitlines() if row.startswith("| `") for key in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert named == set(json.loads(found.files["hpxfer.json"])) - {"hpxfer_export", "target"}


def test_the_names_of_a_model_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks(PAGE, "python") if "write_names" in block]
    exec(block, {})
    assert [one.size for one in read_names("names.json")] == [(128, 64), (128, 64)]


def test_the_export_target_of_the_page_works() -> None:
    (block,) = [block for block in blocks(PAGE, "python") if "register_export_target" in block]
    space: dict[str, Any] = {"__name__": "numbers"}
    try:
        exec(block, space)
        found = export(Recipe.parse(write_yaml(data())), "numbers", TARGET, read_names_of("wte.weight embedding"))
    finally:
        EXPORT_TARGETS.remove("numbers")
    assert found.files["numbers.txt"] == "wte.weight 0.015625 0.1"


def read_names_of(text: str) -> Any:
    from hpxfer.export import Named

    return [Named(name=name, role=role) for name, role in (line.split() for line in text.splitlines())]
