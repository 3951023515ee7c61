"""The plug-ins of docs/extend.md: each file registers what the page says, and nothing else needs to change."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_markdown import blocks

from hpxfer.registry import KINDS, PluginFile, load_plugin, read_plugin, registry

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
FILES = {
    found.group(1): block
    for block in blocks(PAGE.read_text(encoding="utf-8"), "python")
    if (found := re.match(r"# (\w+\.py)\n", block))
}
REGISTERS = {
    "gates.py": ("gate", "softplus"),
    "tables.py": ("parameterization", "mine"),
    "statistics.py": ("statistic", "spread"),
}


@pytest.fixture
def plugin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PluginFile]:
    """A file of the page, loaded as the plug-in of a sweep, and taken out again."""
    name = request.param
    (tmp_path / name).write_text(FILES[name])
    file = read_plugin(f"./{name}", tmp_path)
    load_plugin(file)
    yield file
    for kind in KINDS:
        rows = registry(kind)
        for row in [row for row in rows.names() if file.registers(rows.module(row))]:
            rows.remove(row)
    del sys.modules[file.plugin.module]


def test_the_page_has_a_gate_a_table_and_a_statistic() -> None:
    assert set(FILES) == set(REGISTERS)


@pytest.mark.parametrize("plugin", sorted(FILES), indirect=True)
def test_a_plug_in_of_the_page_registers_one_row(plugin: PluginFile) -> None:
    found = [(kind, name) for kind in KINDS for name in registry(kind) if plugin.registers(registry(kind).module(name))]
    assert found == [REGISTERS[plugin.plugin.name.removeprefix("./")]]
