"""Plug-ins of a sweep: imported before its names are checked, never by what reads results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_text import SWEEP

from hpxfer.errors import HpxferError
from hpxfer.registry import Registry, registry
from hpxfer.spec import dump_sweep, load_sweep, parse_sweep
from hpxfer.spec.load import digests_used, plugin_files, rows_without_plugin, stored_names, used_rows

SOURCE = """
from dataclasses import replace

from hpxfer.registry import registry

tables = registry("parameterization")
tables.register(replace(tables.get("sp"), name="my_table"))
"""
LISTED = "parameterizations: [completep-moe, sp]"


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the plug-ins of a test: a process imports each once."""
    before = set(sys.modules)
    yield
    for module in set(sys.modules) - before:
        if module.startswith(("hpxfer_plugin_", "a_plugin_module")):
            Registry.remove_module(module)
            del sys.modules[module]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep file that names a table of the plug-in beside it."""
    (tmp_path / "mine.py").write_text(SOURCE)
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.replace(LISTED, "parameterizations: [my_table, sp]") + "plugins: [./mine.py]\n")
    return path


def test_a_sweep_may_name_what_its_plugin_registers(sweep: Path) -> None:
    spec = load_sweep(sweep)
    (plugin,) = spec.plugins or ()
    assert plugin.name == str(sweep.parent / "mine.py")
    assert plugin.registers == {"parameterization": ("my_table",)}
    assert ("parameterization", "my_table") in set(used_rows(spec))
    assert digests_used(spec) == {"parameterization:my_table": plugin.digest}
    assert rows_without_plugin(spec) == []
    assert plugin_files(spec)[0].source == SOURCE


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match=r"^<sweep>:22: plugins\[0\]: .*none.py: cannot be read"):
        parse_sweep(f"{SWEEP}plugins: [./none.py]\n")
    (tmp_path / "mine.py").symlink_to(tmp_path / "mine.py")
    with pytest.raises(HpxferError, match=r"<sweep>:\d+: plugins.*/mine.py: cannot be read: Too many levels"):
        parse_sweep(f"{SWEEP}plugins: ['{tmp_path}/mine.py']\n")


def test_the_stored_sweep_holds_name_digest_and_what_it_registers_and_loads_to_the_same(sweep: Path) -> None:
    spec = load_sweep(sweep)
    stored = parse_sweep(dump_sweep(spec), trusted=False)
    assert stored == spec
    assert [set(plugin.model_dump()) for plugin in stored.plugins or ()] == [{"name", "digest", "registers"}]


def test_reading_results_imports_no_code_and_accepts_the_stored_names(sweep: Path) -> None:
    text = dump_sweep(load_sweep(sweep))
    for module in [module for module in sys.modules if module.startswith("hpxfer_plugin_")]:
        Registry.remove_module(module)
        del sys.modules[module]
    (sweep.parent / "mine.py").write_text("raise RuntimeError('imported')\n")
    spec = parse_sweep(text, trusted=False)
    assert [choice.table for choice in spec.parameterizations] == ["my_table", "sp"]
    assert stored_names(spec.plugins or ()) == {"parameterization": {"my_table"}}
    assert not any(module.startswith("hpxfer_plugin_") for module in sys.modules)
    with pytest.raises(HpxferError, match=r"plugins\[0\]: .*mine.py:1: importing it failed: RuntimeError: imported"):
        parse_sweep(text)


def test_a_name_that_no_stored_plugin_registered_is_refused_without_code_too(sweep: Path) -> None:
    text = dump_sweep(load_sweep(sweep)).replace("- my_table\n", "- another\n")
    for module in [module for module in sys.modules if module.startswith("hpxfer_plugin_")]:
        Registry.remove_module(module)
    gate = text.replace("gate: sigmoid", "gate: my_gate")
    with pytest.raises(HpxferError, match="unknown gate 'my_gate'"):
        parse_sweep(gate, trusted=False)


def test_a_module_may_be_named_and_one_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_plugin_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = SWEEP.replace(LISTED, "parameterizations: [my_table, sp]")
    spec = parse_sweep(text, plugins=["a_plugin_module"])
    assert [plugin.name for plugin in spec.plugins or ()] == ["a_plugin_module"]
    assert parse_sweep(text + "plugins: [a_plugin_module]\n", plugins=["a_plugin_module"]) == spec


def test_a_row_that_only_this_process_knows_is_named(sweep: Path) -> None:
    load_sweep(sweep)
    spec = parse_sweep(SWEEP.replace(LISTED, "parameterizations: [my_table, sp]"))
    assert rows_without_plugin(spec) == ["parameterization my_table"]


def test_a_sweep_without_plugins_does_not_mention_them() -> None:
    assert "plugins" not in dump_sweep(parse_sweep(SWEEP))


def test_a_source_of_data_that_only_this_process_knows_is_named_too() -> None:
    sources = registry("data source")
    with sources.registered(replace(sources.get("builtin"), name="mine")):
        spec = parse_sweep(SWEEP.replace("builtin:stdlib", "mine:stdlib"))
        assert rows_without_plugin(spec) == ["data source mine"]


def test_a_plugin_that_registers_no_row_of_the_sweep_needs_no_import_to_check_the_rest(sweep: Path) -> None:
    stored = "plugins: [{name: x.py, digest: a, registers: {figure: [mine]}}]\n"
    with pytest.raises(HpxferError, match="seeds: must be a count"):
        parse_sweep(SWEEP.replace("seeds: 2", "seeds: []") + stored, trusted=False)
