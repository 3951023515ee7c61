"""The regime of a path of shapes: which dimensions grow with the width, by the shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.errors import HpxferError
from hpxfer.limit.network import Regime
from hpxfer.scaling.shape import Shape

# (do the experts grow, does the expert width grow) -> the regime
GROWING: dict[tuple[bool, bool], Regime] = {(False, True): "I", (True, False): "II", (True, True): "III"}
DIMS = ("num_experts", "num_active", "expert_width")


def regime_of(shapes: Sequence[Shape], where: str) -> Regime:
    """Return the regime that shapes follow: I, II or III. Raise HpxferError if they follow none.

    In a regime every dimension stays or grows by the factor of the width (MSSP, Table 1). The active experts grow with
    the experts.
    """
    path = sorted(set(shapes), key=lambda shape: shape.width)
    if len({shape.width for shape in path}) < 2:
        widths = ", ".join(f"{shape.width}" for shape in path)
        raise HpxferError(
            f"{where}: a limit needs shapes of at least two widths, got {widths}; add larger ones to the axis"
        )
    for name in ("depth", "batch_tokens", "steps"):
        if len(values := {getattr(shape, name) for shape in path}) > 1:
            got = ", ".join(map(str, sorted(values)))
            raise HpxferError(f"{where}: {name} must be the same at every shape of the axis, got {got}; {_OTHER}")
    grows = {name: _grows(path, name, where) for name in DIMS}
    if grows["num_experts"] != grows["num_active"]:
        got = ", ".join(f"{shape.num_active} of {shape.num_experts}" for shape in path)
        raise HpxferError(f"{where}: the share of active experts must stay along the axis, got {got}; {_OTHER}")
    found = GROWING.get((grows["num_experts"], grows["expert_width"]))
    if found is None:
        raise HpxferError(
            f"{where}: the axis must follow regime I, II or III, got one along which neither experts nor expert width "
            f"grow with the width; {_OTHER}"
        )
    return found


_OTHER = "take another axis, or a sweep along one regime"


def _grows(path: Sequence[Shape], name: str, where: str) -> bool:
    """Return whether a dimension grows as the width does; False if it stays."""
    first = path[0]
    values = [getattr(shape, name) for shape in path]
    if all(value == values[0] for value in values):
        return False
    if all(value * first.width == values[0] * shape.width for value, shape in zip(values, path, strict=True)):
        return True
    got = ", ".join(f"{value} at width {shape.width}" for value, shape in zip(values, path, strict=True))
    raise HpxferError(f"{where}: {name} must stay or grow by the factor of the width, got {got}; {_OTHER}")
