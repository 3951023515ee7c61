"""Plug-ins: what is read, what is imported, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpxfer.errors import HpxferError
from hpxfer.registry import Registry, load_plugin, read_plugin


@dataclass(frozen=True, kw_only=True)
class Color:
    name: str


COLORS: Registry[Color] = Registry("color", {})
SOURCE = f"from {__name__} import COLORS, Color\nCOLORS.register(Color(name='blue'))\n"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "colors.py"
    path.write_text(SOURCE)
    yield path
    plugin = read_plugin("colors.py", tmp_path).plugin
    sys.modules.pop(plugin.module, None)
    Registry.remove_module(plugin.module)


def test_a_file_is_imported_once_and_owns_its_rows(file: Path) -> None:
    found = read_plugin("colors.py", file.parent)
    assert "blue" not in COLORS
    assert load_plugin(found) is load_plugin(found)
    assert found.registers(COLORS.module("blue"))
    assert not found.registers(__name__)


def test_the_source_that_travelled_is_run_not_the_file(file: Path) -> None:
    found = read_plugin("colors.py", file.parent)
    file.write_text("raise SystemExit")
    load_plugin(found)
    assert "blue" in COLORS
    file.write_text(SOURCE)


def test_a_digest_is_that_of_the_file_unless_it_sets_a_version(file: Path) -> None:
    before = read_plugin("colors.py", file.parent).plugin.digest
    file.write_text(SOURCE + "# a comment\n")
    assert read_plugin("colors.py", file.parent).plugin.digest != before
    file.write_text('version = "2"\n' + SOURCE)
    assert read_plugin("colors.py", file.parent).plugin.digest == "version:2"


def test_half_a_plugin_is_none(file: Path) -> None:
    file.write_text(SOURCE + "1 / 0\n")
    with pytest.raises(HpxferError, match=r"plugins: colors\.py:3: importing it failed: ZeroDivisionError"):
        load_plugin(read_plugin("colors.py", file.parent))
    assert "blue" not in COLORS


def test_a_plugin_that_ends_the_program_is_said(file: Path) -> None:
    file.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(HpxferError, match=r"plugins: colors\.py:2: importing it failed: SystemExit: 3"):
        load_plugin(read_plugin("colors.py", file.parent))


def test_a_file_that_changes_under_a_process_is_said(file: Path) -> None:
    load_plugin(read_plugin("colors.py", file.parent))
    file.write_text(SOURCE + "# changed\n")
    with pytest.raises(HpxferError, match="the file changed after this process had imported it"):
        load_plugin(read_plugin("colors.py", file.parent))


@pytest.mark.parametrize("name", ["nowhere.py", "no.such.module", "json", "a b", "../x", "./text.txt", ""])
def test_what_is_no_plugin_is_said(name: str, tmp_path: Path) -> None:
    if name == "json":  # a package has a file like any module
        assert read_plugin(name, tmp_path).plugin.name == "json"
        return
    with pytest.raises(HpxferError, match="plugins: "):
        read_plugin(name, tmp_path)


def test_what_is_not_python_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def")
    (tmp_path / "b.py").write_bytes(b"\xff\0")
    for name in ("a.py", "b.py"):
        with pytest.raises(HpxferError, match=f"plugins: {name}: must be Python"):
            read_plugin(name, tmp_path)


def test_another_module_than_the_driver_s_is_said() -> None:
    found = read_plugin("json", Path())
    with pytest.raises(HpxferError, match="install the same version on every machine"):
        load_plugin(replace(found, plugin=replace(found.plugin, digest="another")))
