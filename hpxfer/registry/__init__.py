"""Extension points: one class for every registry, the table of kinds, and the plug-ins that add rows."""

from hpxfer.registry.kinds import KINDS, registry
from hpxfer.registry.plugins import Plugin, PluginFile, load_plugin, read_plugin
from hpxfer.registry.rows import Registry

__all__ = ["KINDS", "Plugin", "PluginFile", "Registry", "load_plugin", "read_plugin", "registry"]
