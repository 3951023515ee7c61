"""Plug-ins of a submitted sweep: what travels, where it is unpacked, and what is refused on the head."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import write_tiny

from hpxfer.errors import HpxferError
from hpxfer.jobs.plugins import sources, unpacked_sweep
from hpxfer.jobs.request import Request, packed, unpacked
from hpxfer.registry import Registry, read_plugin
from hpxfer.spec import SweepSpec, dump_sweep, load_sweep, parse_sweep

TABLE = """
from dataclasses import replace
from hpxfer.scaling import register_parameterization
from hpxfer.scaling.tables import PARAMETERIZATIONS

register_parameterization(replace(PARAMETERIZATIONS.get("completep-moe"), name="travels"))
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SweepSpec]:
    """A loaded sweep with a table of a plug-in file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(TABLE)
    file = write_tiny(
        tmp_path, ("parameterizations: [completep-moe, sp]", "parameterizations: [travels, sp]\nplugins: [./mine.py]")
    )
    yield load_sweep(file)
    module = read_plugin(str(tmp_path / "mine.py"), tmp_path).plugin.module
    Registry.remove_module(module)
    sys.modules.pop(module)


def test_a_plugin_file_travels_and_gets_the_same_path_every_time(spec: SweepSpec, tmp_path: Path) -> None:
    request = Request(action="run", job="a", root="r", name=spec.name, plugins=sources(spec))
    arrived, text = unpacked(packed(request, dump_sweep(spec)))
    assert arrived == request
    first, second = (unpacked_sweep(text, dict(arrived.plugins)) for _ in range(2))
    assert first == second
    (plugin,) = parse_sweep(first, trusted=False).plugins or ()
    assert spec.plugins is not None
    assert plugin.digest == spec.plugins[0].digest
    assert Path(plugin.name).read_text() == TABLE
    assert tmp_path / "cache" in Path(plugin.name).parents


def test_other_code_than_was_submitted_is_refused(spec: SweepSpec) -> None:
    files = {name: f"{source}# changed\n" for name, source in sources(spec).items()}
    with pytest.raises(HpxferError, match="must be the one that was submitted"):
        unpacked_sweep(dump_sweep(spec), files)


def test_a_version_is_no_path(spec: SweepSpec, tmp_path: Path) -> None:
    (name,) = sources(spec)
    source = f'version = "../../../outside"\n{TABLE}'
    assert spec.plugins is not None
    plugin = spec.plugins[0].model_copy(update={"digest": "version:../../../outside"})
    text = dump_sweep(spec.model_copy(update={"plugins": (plugin,)}))
    (local,) = parse_sweep(unpacked_sweep(text, {name: source}), trusted=False).plugins or ()
    assert Path(local.name).resolve().is_relative_to(tmp_path / "cache" / "hpxfer" / "plugins")
