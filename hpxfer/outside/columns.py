"""The columns of a table of runs, and which column of the user's holds each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.outside.cells import exponents_of
from hpxfer.outside.guessed import NAMES, Guess, ambiguous, guesses
from hpxfer.outside.imports.choices import HELD_OUT

# Column -> what it holds.
COLUMNS = {
    "arm": "what the runs of one arm have in common, such as a parameterization",
    "axis": "what grows along the scales",
    "scale": "the size of the model along the axis",
    "is_base": "whether the shape is the base, from which the HP is transferred",
    "hp": "the name of the HP that is scanned",
    "value": "the value of the HP",
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
_RISES = re.compile(r"(^|[^a-z])(acc|accuracy|f1|auc|auroc|bleu|reward|return|score)([^a-z]|$)", re.IGNORECASE)
STATUSES = ("finished", "diverged", "failed", "running")


def columns_of(
    own: Mapping[str, Sequence[Any]], given: Mapping[str, str], shape: Sequence[str], where: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return column -> the table's own column that holds it, for every column that is there, and what was guessed.

    `own` are the table's columns. `given` is what the user maps. Other columns are found by their name, or by one of
    `guessed.NAMES`. `shape` are the table's columns that give the dimensions of a shape; the scale is then one of them.
    Raises HpxferError that names all columns that are not there, and those that may be one of several.
    """
    present = list(own)
    for name in given:
        if name not in COLUMNS:
            raise HpxferError(f"{where}: --map: unknown column {shown(name)}; {nearest(name, COLUMNS)}")
    for name in (*given.values(), *shape):
        if name not in present:
            raise HpxferError(f"{where}: column {shown(name)} is not in the table; {nearest(name, present)}")
    if _RISES.search(given.get("loss", "")):
        raise HpxferError(
            f"{where}: --map loss: must name a column that falls as models get better, got {shown(given['loss'])}; "
            "name the column of the loss"
        )
    for name in shape:
        if exponents_of(name) is not None:
            raise HpxferError(
                f"{where}: --shape: must name a column of sizes, got exponents, {shown(name)}; write sizes"
            )
    measured = {given.get(name) for name in (*REQUIRED, "seed")}
    exact = {name: name for name in COLUMNS if name in present and name not in shape and name not in measured}
    out = exact | dict(given)
    _check_used_once(out, shape, where)
    if shape:
        _check_shape_columns(out, given, shape, where)
    found = _guessed(own, out, given, shape)
    out |= {guess.column: guess.only for guess in found if guess.only is not None}
    unclear = [guess for guess in found if guess.only is None]
    known = (*out, *(guess.column for guess in unclear))
    missing = [name for name in REQUIRED if name not in known and not (name == "scale" and shape)]
    if problems := [*([_missing(missing, own)] if missing else []), *map(ambiguous, unclear)]:
        raise HpxferError("\n".join(f"{where}: {problem}" for problem in problems))
    said = ", ".join(f"{guess.column} from {guess.only}" for guess in found if guess.only is not None)
    return out, (f"columns taken by their names: {said}; --map names others",) if said else ()


def _guessed(
    own: Mapping[str, Sequence[Any]], out: dict[str, str], given: Mapping[str, str], shape: Sequence[str]
) -> list[Guess]:
    """Return what names of columns say beside `out`, which loses an exact name that may be something else."""
    doubtful = {name for name in ("loss", "value") if out.get(name) == name and name not in given}
    wanted = [name for name in (*NAMES, "loss") if name not in out and not (name == "scale" and shape)]
    if "value" in doubtful and "loss" not in out:  # Optuna's value is the loss
        rest = {name: column for name, column in out.items() if name != "value"}
        found = guesses(own, rest, shape, ["value", "loss"])
        if len(found) == 2 and found["loss"].names == ("value",):
            del out["value"]
            wanted.append("value")
    if "loss" in doubtful:  # of training, perhaps, beside a held-out one
        beside = guesses(own, out, shape, ["loss"]).get("loss")
        if beside is not None and any(map(HELD_OUT.search, beside.names)):
            del out["loss"]
            return [*guesses(own, out, shape, wanted).values(), Guess("loss", (*beside.names, "loss"))]
    return list(guesses(own, out, shape, wanted).values())


def _missing(missing: Sequence[str], own: Mapping[str, Sequence[Any]]) -> str:
    """Return that columns are missing, and how to name them."""
    *first, last = missing
    holds = ", ".join(f"{name}: {COLUMNS[name]}" for name in missing)
    what = f"columns {', '.join(first)} and {last} are missing ({holds})"
    what = what if first else f"column {last} is missing: {COLUMNS[last]}"
    named = " ".join(f"--map {name}=NAME" for name in missing)
    listed = ", ".join(map(shown, list(own)[:20])) or "no column"
    return f"{what}; a row is one run, and {named} names the column; the table has {listed}"


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
