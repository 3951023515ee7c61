"""How a user may spell a shape, and how reports, tables and figures label scales and arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpxfer.errors import HpxferError, shown
from hpxfer.verdict.thresholds import CONTROL

COUNT = "num_"  # the start of the names of counts, which a user may leave out


@dataclass(frozen=True, kw_only=True)
class AxisShape:
    """One shape of one axis, by the names that results give it."""

    axis: str
    scale_name: str
    scale: float
    shape: str

    @property
    def name(self) -> str:
        """Its name within the axis, e.g. `width 64`."""
        return shape_label(self.scale_name, self.scale)

    def spellings(self) -> set[str]:
        """Return every way to spell it but the whole name, without blanks: name or first letter, and the scale."""
        counted = self.scale_name.removeprefix(COUNT)
        starts = (self.scale_name, counted, self.axis, counted[:1])
        return {_plain(start + scale_text(self.scale)) for start in starts}


def find_shape(shapes: Sequence[AxisShape], spelled: str, where: str) -> AxisShape:
    """Return the shape that a user names. Raise HpxferError, which lists the legal names, if that is not exactly one.

    `where` says where the user names it, e.g. `--base`.
    """
    found = [shape for shape in shapes if _plain(shape.shape) == _plain(spelled)]
    found = found or [shape for shape in shapes if _plain(spelled) in shape.spellings()]
    if not found:
        raise HpxferError(
            f"{where}: must be a shape of the sweep, got {shown(spelled)}; the shapes are {_listed(shapes)}"
        )
    if len({shape.shape for shape in found}) > 1:
        whole = " or ".join(dict.fromkeys(shape.shape for shape in found))
        raise HpxferError(f"{where}: must name one shape, got {shown(spelled)}, which names several; give {whole}")
    return found[0]


def _listed(shapes: Sequence[AxisShape]) -> str:
    """Return the names of shapes; the whole name where the scale does not say which shape is meant.

    That is where another shape has the same scale, or where the scale is no single dimension, such as hidden weights.
    """
    wholes: dict[str, set[str]] = {}
    for shape in shapes:
        wholes.setdefault(shape.name, set()).add(shape.shape)
    named = (" " in shape.scale_name or len(wholes[shape.name]) > 1 for shape in shapes)
    return ", ".join(
        dict.fromkeys(shape.shape if whole else shape.name for shape, whole in zip(shapes, named, strict=True))
    )


def _plain(text: str) -> str:
    """Return a spelling without what users may vary: case, blanks, underscores and `=`."""
    return "".join(character for character in text.lower() if character not in " _=-")


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
