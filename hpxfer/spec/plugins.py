"""Plug-ins of a sweep: they are imported before the sweep's names are checked, and remembered with what they register.

A loaded sweep holds each plug-in as `{name, digest, registers}`, and so does the sweep.yaml of its results. Reading
results imports nothing: the stored entry says which names the plug-in registered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hpxfer.errors import HpxferError, shown
from hpxfer.registry import PluginFile, Registry, load_plugin, read_plugin, registry
from hpxfer.spec.source_kind import source_kind
from hpxfer.spec.sweep import PluginSpec, SweepSpec
from hpxfer.spec.yaml_file import YamlFile

Names = dict[str, set[str]]  # kind -> the names of its rows
# The kinds of rows that a sweep file names.
NAMED = ("parameterization", "gate", "data source", "sample source", "search", "logger")


def import_plugin(name: str, folder: Path) -> PluginSpec:
    """Import a plug-in and return it with what it registers. A relative file starts at `folder`."""
    if "\0" in name:
        raise HpxferError(f"plugins: must be a file or a module, got {shown(name)} with a zero byte; take it out")
    is_file = name.endswith(".py")
    file = read_plugin(os.path.realpath(folder / name) if is_file else name, folder)
    load_plugin(file)
    registers = {kind: tuple(names) for kind, names in Registry.registered_by(file.registers).items()}
    return PluginSpec(name=file.plugin.name, digest=file.plugin.digest, registers=registers)


def import_plugins(file: YamlFile, given: Sequence[PluginSpec], folder: Path) -> tuple[PluginSpec, ...]:
    """Import the plug-ins of a sweep file in their order. An error names the line of the plug-in."""
    out = []
    for index, plugin in enumerate(given):
        try:
            out.append(import_plugin(plugin.name, folder))
        except HpxferError as error:
            where = file.where(("plugins", index))
            raise HpxferError(f"{where}: {str(error).removeprefix('plugins: ')}") from error
    return tuple(out)


def plugin_files(spec: SweepSpec) -> tuple[PluginFile, ...]:
    """Return the plug-ins of a loaded sweep with their source, which workers need."""
    return tuple(read_plugin(plugin.name, Path()) for plugin in spec.plugins or ())


def stored_names(plugins: Iterable[PluginSpec]) -> Names:
    """Return the names that plug-ins register, as a stored sweep says."""
    out: Names = {}
    for plugin in plugins:
        for kind, names in (plugin.registers or {}).items():
            out.setdefault(kind, set()).update(names)
    return out


def are_registered(names: Names) -> bool:
    """Return whether this process knows a row of each of these names, for the kinds that a sweep file names."""
    return all(name in registry(kind) for kind in NAMED for name in names.get(kind, ()))


def used_rows(spec: SweepSpec) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the registered rows that determine the numbers of the sweep's trials."""
    for choice in spec.parameterizations:
        yield "parameterization", choice.table
    yield "gate", spec.model.gate


def digests_used(spec: SweepSpec) -> dict[str, str]:
    """Return `kind:name` -> digest of its plug-in, for the plug-ins' rows that determine the trials' numbers."""
    used = set(used_rows(spec))
    return {
        f"{kind}:{name}": plugin.digest
        for plugin in spec.plugins or ()
        for kind, names in (plugin.registers or {}).items()
        for name in names
        if (kind, name) in used and plugin.digest is not None
    }


def rows_without_plugin(spec: SweepSpec) -> list[str]:
    """Return `kind name` of the rows that this process registered by itself, so that no worker could import them."""
    listed = stored_names(spec.plugins or ())
    return [
        f"{kind} {name}"
        for kind, name in (*used_rows(spec), (source_kind(spec.data.source), spec.data.source.partition(":")[0]))
        if registry(kind).module(name) is not None and name not in listed.get(kind, ())
    ]
