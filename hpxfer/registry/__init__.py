"""Extension points: rows by name, the table of kinds, and the plug-ins that add rows."""

from hpxfer.registry.kinds import KINDS, registry, rows_of
from hpxfer.registry.plugins import Plugin, PluginFile, load_plugin, read_plugin
from hpxfer.registry.rows import Registry, Rows

__all__ = ["KINDS", "Plugin", "PluginFile", "Registry", "Rows", "load_plugin", "read_plugin", "registry", "rows_of"]
