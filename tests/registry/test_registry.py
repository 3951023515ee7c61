"""A registry: one set of rules for every extension point; and plug-ins, which add rows to it."""

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


RED = Color(name="red")


def colors() -> Registry[Color]:
    return Registry("color", {"red": f"{__name__}:RED"})


def test_a_row_of_hpxfer_is_imported_when_it_is_asked_for() -> None:
    found = Registry[Color]("color", {"red": "no_such_module:RED"})
    assert found.names() == ("red",)
    with pytest.raises(ModuleNotFoundError):
        found.get("red")
    assert colors().get("red") is sys.modules[__name__].RED


def test_a_user_s_row_is_one_like_the_others_and_knows_its_module() -> None:
    found = colors()
    row = found.register(Color(name="blue"))
    assert found.names() == ("red", "blue")
    assert found.rows() == (RED, row)
    assert (found.module("blue"), found.module("red")) == (__name__, None)


def test_a_name_is_registered_once_and_an_unknown_one_gets_the_nearest() -> None:
    found = colors()
    found.register(Color(name="blue"))
    for name in ("red", "blue"):
        with pytest.raises(HpxferError, match=f"color '{name}' is registered already, by .*; choose another name"):
            found.register(Color(name=name))
    with pytest.raises(HpxferError, match=r"^sweep.yaml: model.color: unknown color 'rde'; did you mean 'red'\?$"):
        found.get("rde", "sweep.yaml: model.color")


def test_what_a_module_registered_goes_with_it_or_after_a_while() -> None:
    found = colors()
    found.register(Color(name="blue"))
    Registry.remove_module(__name__)
    assert found.names() == ("red",)
    with found.registered(Color(name="blue")):
        assert "blue" in found
    assert "blue" not in found


@pytest.mark.parametrize("name", ["", "a b", "../x", 5, None])
def test_a_name_is_letters_digits_and_little_more(name: object) -> None:
    with pytest.raises(HpxferError, match="a row must have a name of letters, digits"):
        colors().register(Color(name=name))  # type: ignore[arg-type]
    with pytest.raises(HpxferError, match="got None of a str"):
        colors().register("red")  # type: ignore[arg-type]


def test_another_spelling_finds_the_row_and_is_no_name_of_its_own() -> None:
    found = Registry[Color]("color", {"red": f"{__name__}:RED"}, also={"rouge": "red"})
    assert "rouge" in found
    assert found.get("rouge") is found.get("red")
    assert (found.spelled("rouge"), found.names()) == ("red", ("red",))
    with found.registered(Color(name="rouge")) as mine:  # a user's row comes before a spelling
        assert found.get("rouge") is mine


COLORS: Registry[Color] = Registry("color", {})
SOURCE = f"from {__name__} import COLORS, Color\nCOLORS.register(Color(name='blue'))\n"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "colors.py"
    path.write_text(SOURCE)
    yield path
    plugin = read_plugin("colors.py", tmp_path)
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
    before = read_plugin("colors.py", file.parent).digest
    file.write_text(SOURCE + "# a comment\n")
    assert read_plugin("colors.py", file.parent).digest != before
    file.write_text('version = "2"\n' + SOURCE)
    assert read_plugin("colors.py", file.parent).digest == "version:2"


@pytest.mark.parametrize("fault", ["1 / 0\n", "raise SystemExit(3)\n"])
def test_half_a_plugin_is_none(file: Path, fault: str) -> None:
    file.write_text(SOURCE + fault)
    said = r"plugins: colors\.py:3: importing it failed: (ZeroDivisionError|SystemExit: 3)"
    with pytest.raises(HpxferError, match=said):
        load_plugin(read_plugin("colors.py", file.parent))
    assert "blue" not in COLORS


def test_a_file_that_changes_under_a_process_is_said(file: Path) -> None:
    load_plugin(read_plugin("colors.py", file.parent))
    file.write_text(SOURCE + "# changed\n")
    with pytest.raises(HpxferError, match="the file changed after this process had imported it"):
        load_plugin(read_plugin("colors.py", file.parent))


@pytest.mark.parametrize("name", ["nowhere.py", "no.such.module", "a b", "../x", "./text.txt", "", "def.py", "zero.py"])
def test_what_is_no_plugin_is_said(name: str, tmp_path: Path) -> None:
    (tmp_path / "def.py").write_text("def")
    (tmp_path / "zero.py").write_bytes(b"\xff\0")
    with pytest.raises(
        HpxferError, match=rf"plugins: {name}: must be Python" if (tmp_path / name).is_file() else "plugins: "
    ):
        read_plugin(name, tmp_path)


def test_another_module_than_the_driver_s_is_said() -> None:
    found = read_plugin("json", Path())
    with pytest.raises(HpxferError, match="install the same version on every machine"):
        load_plugin(replace(found, digest="another"))
