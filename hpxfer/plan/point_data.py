"""What the plan says of the training data of each shape, where points have data of their own."""

from __future__ import annotations

from hpxfer.spec import SweepSpec
from hpxfer.spec.axes import axes_of
from hpxfer.spec.data import own_data


def data_lines(spec: SweepSpec) -> tuple[str, ...]:
    """Return the training data of each shape that has its own, then that of all others; nothing if none has.

    E.g. `w32 d2 E16A4 h32 b256 t160: text:more.txt`.
    """
    own = own_data(spec)
    names = {point.shape: axis.label(point.shape) for axis in axes_of(spec) for point in axis.points}
    lines = [f"{names[shape]}: {data.source}" for shape, data in own.items() if shape in names]
    return (*lines, f"all other shapes: {spec.data.source}") if lines else ()
