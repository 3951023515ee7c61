"""Exports: a recipe at a shape as files for another trainer. No trainer is imported."""

from hpxfer.export.names import Named, names_of, read_names, write_names
from hpxfer.export.target import Target
from hpxfer.export.targets import TARGETS, register_target
from hpxfer.export.write import Exported, export, read_roles

__all__ = [
    "TARGETS",
    "Exported",
    "Named",
    "Target",
    "export",
    "names_of",
    "read_names",
    "read_roles",
    "register_target",
    "write_names",
]
