"""Extension points: rows by name, the table of kinds, and the plug-ins that add rows."""

from hpxfer.registry.plugins import PluginFile, load_plugin, read_plugin
from hpxfer.registry.rows import KINDS, Registry, Rows, registry, rows_of
