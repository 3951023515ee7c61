"""How reports, tables and figures write scales, shapes, HP values, arms and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpxfer.host.output import NOTHING

# The name of the parameterization that all others of a sweep are compared with, if nobody names another arm.
CONTROL = "sp"

LARGEST_IN_FULL = 1e12
FRACTIONS = 1024  # exponents that are multiples of 1/1024 are those of a grid of powers of two


def scale_text(scale: float) -> str:
    """Return a scale as text. Counts are written in full: `2359296`, not `2.3593e+06`."""
    return f"{scale:.0f}" if float(scale).is_integer() and abs(scale) < LARGEST_IN_FULL else f"{scale:g}"


def shape_label(scale_name: str, scale: float) -> str:
    """Return the name of a shape within its axis, e.g. `width 64`."""
    return f"{scale_name} {scale_text(scale)}"


def scales_text(scale_name: str, scales: Sequence[float]) -> str:
    """Return the names of shapes as one, e.g. `width 32 and 128`."""
    return f"{scale_name} {' and '.join(map(scale_text, scales))}"


def is_short(exponent: float) -> bool:
    """Return whether an exponent is that of a grid of powers of two."""
    return math.isclose(exponent * FRACTIONS, round(exponent * FRACTIONS), abs_tol=1e-6)


def value_text(value: float) -> str:
    """Return an HP value as a report writes it: `2^-6.5` for a power of two of few digits, else `0.003`."""
    exponent = math.log2(value)
    return f"2^{exponent:g}" if is_short(exponent) else f"{value:.6g}"


def hp_text(value: float | None) -> str:
    """Return an HP of the grid: `2^-6.5`, or `0.0003 (2^-11.7)` for a number that is no such power; `-` without one."""
    if value is None:
        return NOTHING
    text = value_text(value)
    return text if text.startswith("2^") else f"{text} (2^{math.log2(value):.3g})"


def name_of(label: str) -> str:
    """Return the name in the label of an arm: `tuned` of `completep-moe (tuned)`, nothing of `completep-moe`."""
    return label.partition(" (")[2].removesuffix(")")


def is_control(label: str, control: str | None = CONTROL) -> bool:
    """Return whether the label is that of an arm that others are compared with, those of its name first.

    `control` names that arm, with its name or without; None: there is none.
    """
    return control is not None and control in (label, label.partition(" (")[0])


@dataclass(frozen=True, kw_only=True)
class JudgedLoss:
    """A loss by its name in `judge.loss`."""

    name: str = "validation"
    words: str = "validation loss"
    unit: str = "nats"  # or squared error, or that of a loss that others measured, e.g. bits per byte

    def column(self, name: str) -> str:
        """Return the name of a column of losses in data: `mean_nats` is `mean_squared_error` of a squared error."""
        if not name.endswith("_nats"):
            return name
        return f"{name.removesuffix('nats')}{self.unit.replace(' ', '_')}"

    def level(self, loss: float) -> str:
        """Return a loss with its unit: `3.1415 nats`."""
        return f"{loss:.4f} {self.unit}"

    def amount(self, difference: float) -> str:
        """Return a difference of losses with its unit: `0.017 nats`."""
        return f"{difference:.2g} {self.unit}"


NATS = JudgedLoss()
