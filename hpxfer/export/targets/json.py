"""`json`: hpxfer.json alone, which is written for every target and which any trainer can read."""

from __future__ import annotations

from hpxfer.export.targets import ExportTarget

JSON = ExportTarget(
    name="json",
    doc="hpxfer.json alone: every number by parameter, or by role without names",
    optimizers=("adamw", "sgd"),
    needs_names=False,
    files=lambda plan, lacks: {},
)
