"""Exports: a recipe at a shape as files for another trainer. No trainer is imported."""

from hpxfer.export.names import Named, names_of, read_names, write_names
from hpxfer.export.targets import EXPORT_TARGETS, ExportTarget, register_export_target
from hpxfer.export.write import Exported, export, read_roles

__all__ = [
    "EXPORT_TARGETS",
    "ExportTarget",
    "Exported",
    "Named",
    "export",
    "names_of",
    "read_names",
    "read_roles",
    "register_export_target",
    "write_names",
]
