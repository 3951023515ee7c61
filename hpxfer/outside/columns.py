"""The columns of a table of runs, and which column of the user's holds each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpxfer.errors import HpxferError, nearest, shown

# Column -> what it holds.
COLUMNS = {
    "arm": "what the runs of one arm have in common, such as a parameterization",
    "axis": "what grows along the scales",
    "scale": "the size of the model along the axis",
    "is_base": "whether the shape is the base, from which the HP is transferred",
    "hp": "the name of the HP that is scanned",
    "value": "its value",
    "seed": "the seed of the run",
    "loss": "the loss that the run is judged by",
    "status": "finished, diverged, failed or running",
    "run_id": "the name of the run",
    "steps": "how many steps it trained",
    "loss_name": "what the loss is, in words",
    "unit": "the unit of the loss",
    "scale_name": "what the scale counts, if the axis has another name",
    "shape": "the name of the whole shape",
}
REQUIRED = ("scale", "value", "loss")
STATUSES = ("finished", "diverged", "failed", "running")


def columns_of(present: Sequence[str], given: Mapping[str, str], shape: Sequence[str], where: str) -> dict[str, str]:
    """Return column -> the table's own column that holds it, for every column that is there.

    `given` is what the user maps. Other columns are found by their name. `shape` are the table's columns that give the
    dimensions of a shape; the scale is then one of them. Raises HpxferError for a column that is not there.
    """
    for name in given:
        if name not in COLUMNS:
            raise HpxferError(f"{where}: --map: unknown column {shown(name)}; {nearest(name, COLUMNS)}")
    for name in (*given.values(), *shape):
        if name not in present:
            raise HpxferError(f"{where}: column {shown(name)} is not in the table; {nearest(name, present)}")
    out = {name: name for name in COLUMNS if name in present and name not in shape} | dict(given)
    _check_used_once(out, shape, where)
    if shape:
        _check_shape_columns(out, given, shape, where)
    missing = [name for name in REQUIRED if name not in out and not (name == "scale" and shape)]
    if missing:
        names = ", ".join(map(shown, present[:20]))
        free = [name for name in present if name not in (*out.values(), *shape)]
        raise HpxferError(
            f"{where}: column {missing[0]} is missing: {COLUMNS[missing[0]]}; name the column that holds it, e.g. "
            f"--map {missing[0]}={free[-1] if free else 'NAME'}; the table has {names or 'no column'}"
        )
    return out


def _check_used_once(of: Mapping[str, str], shape: Sequence[str], where: str) -> None:
    """Refuse a column of the table that would be two things at once, such as the HP value and the loss."""
    for name in shape:
        if shape.count(name) > 1:
            raise HpxferError(f"{where}: --shape: must name {shown(name)} once, got it twice; leave one of them out")
    holds = dict.fromkeys(shape, "a shape column")
    for what in ("value", "seed", "loss") if shape else ("scale", "value", "seed", "loss"):
        own = of.get(what)
        if own is not None and holds.setdefault(own, what) != what:
            raise HpxferError(
                f"{where}: column {shown(own)} must be one thing, got it as {holds[own]} and as {what}; map another "
                "column"
            )


def _check_shape_columns(out: dict[str, str], given: Mapping[str, str], shape: Sequence[str], where: str) -> None:
    """Refuse columns that shape columns stand for, if the user maps them, and leave out those found by name."""
    for name in ("axis", "scale_name", "shape"):
        if name in given:
            raise HpxferError(f"{where}: --map {name}: goes without shape columns, got both; leave one of them out")
        out.pop(name, None)
    if "scale" in given and given["scale"] not in shape:
        raise HpxferError(
            f"{where}: --map scale: must be one of the shape columns {', '.join(shape)}, got {shown(given['scale'])}; "
            "its axis varies that column alone"
        )
    if "scale" not in given:
        out.pop("scale", None)
