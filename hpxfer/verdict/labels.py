"""How scales and arms are written, in reports, tables and figures alike."""

from __future__ import annotations

from hpxfer.verdict.thresholds import CONTROL

LARGEST_IN_FULL = 1e12


def scale_text(scale: float) -> str:
    """Return a scale as text. Counts are written in full: `2359296`, not `2.3593e+06`."""
    return f"{scale:.0f}" if float(scale).is_integer() and abs(scale) < LARGEST_IN_FULL else f"{scale:g}"


def shape_label(scale_name: str, scale: float) -> str:
    """Return the name of a shape within its axis, e.g. `width 64`."""
    return f"{scale_name} {scale_text(scale)}"


def name_of(label: str) -> str:
    """Return the name in the label of an arm: `tuned` of `completep-moe (tuned)`, nothing of `completep-moe`."""
    return label.partition(" (")[2].removesuffix(")")


def is_control(label: str, control: str | None = CONTROL) -> bool:
    """Return whether the label is that of an arm that others are compared with, those of its name first.

    `control` names that arm, with its name or without; None: there is none.
    """
    return control is not None and control in (label, label.partition(" (")[0])
