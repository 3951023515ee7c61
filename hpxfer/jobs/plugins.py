"""Plug-ins of a submitted sweep: files travel with the request, and the head checks that it has the same code."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.host.files import cache_folder, write_files
from hpxfer.registry import read_plugin
from hpxfer.spec import SweepSpec, dump_sweep, parse_sweep
from hpxfer.spec.load import plugin_files
from hpxfer.spec.sweep import PluginSpec


def sources(spec: SweepSpec) -> dict[str, str]:
    """Return name -> source of every plug-in. The source of a module is empty: it must be installed on every node."""
    return {file.plugin.name: file.source if file.plugin.is_file else "" for file in plugin_files(spec)}


def unpacked_sweep(text: str, files: dict[str, str]) -> str:
    """Return the sweep with the plug-in files that travelled with it, which are written to this machine's cache.

    The same file always gets the same path, so that a sweep that is submitted again is the same sweep. Raises
    HpxferError if a plug-in is not the one that the sweep was submitted with.
    """
    spec = parse_sweep(text, "the sweep of the job", trusted=False)
    local = tuple(_local(plugin, files) for plugin in spec.plugins or ())
    return dump_sweep(spec.model_copy(update={"plugins": local}))


def _local(plugin: PluginSpec, files: dict[str, str]) -> PluginSpec:
    name = plugin.name
    if files.get(name):
        # A version is any text, so its hash and not the text names the folder.
        folder = hashlib.blake2b(str(plugin.digest).encode(), digest_size=16).hexdigest()
        path = cache_folder("plugins") / folder / Path(name).name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = files[name].encode()
        write_files({path: lambda file: file.write(content)})
        name = str(path)
    digest = read_plugin(name, Path()).plugin.digest
    if digest != plugin.digest:
        raise HpxferError(
            f"plugins: {plugin.name}: must be the one that was submitted, {plugin.digest}, got {digest} here; "
            "install the same version on every machine"
        )
    return plugin.model_copy(update={"name": name})
