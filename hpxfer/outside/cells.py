"""Cells of a table as values: each reader returns the value of a cell, or raises `Bad` with the rule it breaks."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pandas as pd

from hpxfer.errors import cut, shown

MOST_CHARACTERS = 80  # of a name: figures and file names show it
LARGEST = 1e30  # of a number: squares of larger ones overflow
# What a number must be, in words -> whether a number is that.
SIZE, VALUE = f"a number from {1 / LARGEST:g} to {LARGEST:g}", f"0 or a number from {1 / LARGEST:g} to {LARGEST:g}"
WHOLE, EXPONENT = "a whole number", "an exponent"
LOSS = f"a number from -{LARGEST:g} to {LARGEST:g}, or inf or nan of a run that diverged"
RULES: dict[str, Callable[[float], bool]] = {
    SIZE: lambda number: 1 / LARGEST <= number <= LARGEST,
    VALUE: lambda number: number == 0 or 1 / LARGEST <= number <= LARGEST,
    WHOLE: lambda number: number.is_integer() and abs(number) < 2**53,
    EXPONENT: lambda number: abs(number) <= LARGEST,
    LOSS: lambda number: number == math.inf or abs(number) <= LARGEST,
}
STATUSES = ("finished", "diverged", "failed", "running")
# How trackers, searches and schedulers of clusters say that a run ended -> the status. Optuna's FAIL is no state of
# its own: it also says so of a loss that is NaN.
STATES = {
    **dict.fromkeys(("finished", "complete", "completed", "success", "succeeded", "done", "terminated"), "finished"),
    **dict.fromkeys(("diverged", "nan"), "diverged"),
    **dict.fromkeys(("failed", "crashed", "killed", "error", "cancelled", "canceled", "timeout"), "failed"),
    **dict.fromkeys(("out_of_memory", "node_fail"), "failed"),
    **dict.fromkeys(("running", "pruned", "stopped", "paused", "preempted", "preempting"), "running"),
    **dict.fromkeys(("waiting", "pending", "queued", "scheduled"), "running"),
    "fail": "fail",
}
_FLAGS = {**dict.fromkeys(("true", "yes", "1", "1.0"), True), **dict.fromkeys(("false", "no", "0", "0.0"), False)}
_NOTHING = ("none", "null", "na", "n/a", "#n/a", "<na>")  # what programs write for a loss that is not there
_POWER = re.compile(r"(\d+\.?\d*)\s*(?:\^|\*\*)\s*\(?\s*([-+]?\d+\.?\d*)\s*\)?")  # 2^-9, 2**-9, 10^(-3)
_FRACTION = re.compile(r"(\d+\.?\d*)\s*/\s*(\d+\.?\d*)")
_COMMA = re.compile(r"\s*[-+]?\d+,\d+(?:[eE][-+]?\d+)?\s*")
_THOUSANDS = re.compile(r"\s*[-+]?[1-9]\d{0,2}(?:,\d{3})+\s*")
# The name of a column of exponents: log2_lr, log10(lr), lr_log2.
_LOG_FIRST = re.compile(r"(.*[./])?log_?(2|10)[\s_(\[-]*([^\W\d].*?)[)\]]?", re.IGNORECASE)
_LOG_LAST = re.compile(r"(.+?)[\s_(\[-]+log_?(2|10)[)\]]?", re.IGNORECASE)


class Bad(ValueError):
    """A cell breaks a rule. The text is the rule and what was got."""

    def __init__(self, rule: str, cell: object) -> None:
        super().__init__(f"must be {rule}, got {shown(cell) if not is_empty(cell) else 'an empty cell'}")


def is_empty(cell: Any) -> bool:
    """Return whether a cell holds nothing: None, NaN, NA, or text without a character."""
    if isinstance(cell, Decimal):  # pandas raises at a signaling NaN
        return cell.is_nan()
    return not cell.strip() if isinstance(cell, str) else pd.isna(cell) is True


def is_lost(cell: object) -> bool:
    """Return whether the cell of a loss holds none."""
    return is_empty(cell) or (isinstance(cell, str) and cell.strip().lower() in _NOTHING)


def text(cell: Any) -> str:
    """Return the name that a cell holds; a number is spelled as Python spells it."""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        cell = int(cell)
    if is_empty(cell) or not isinstance(cell, str | int | float | numbers.Number):
        raise Bad("a name", cell)
    name = " ".join(str(cell).split())
    if not name.isprintable() or len(name) > MOST_CHARACTERS:
        raise Bad(f"a name of at most {MOST_CHARACTERS} characters that can be printed", cut(name))
    return name


def number(cell: Any, rule: str) -> float:
    """Return the number that a cell holds, by one of `RULES`: 0.001, 1e-3, 2^-9, 2**-9 or 1/512.

    Of a loss, +inf says that the run diverged, and so does the text nan, which no empty cell is written as.
    """
    is_number = isinstance(cell, numbers.Real | Decimal) and "bool" not in type(cell).__name__
    is_text = isinstance(cell, str) and "_" not in cell and cell.isascii()  # Python's own float would read the others
    try:
        if is_empty(cell) or not (is_number or is_text):
            raise Bad(rule, cell)
        if is_text and (found := _POWER.fullmatch(cell.strip())):
            value = math.pow(float(found[1]), float(found[2]))
        elif is_text and (found := _FRACTION.fullmatch(cell.strip())):
            value = float(found[1]) / float(found[2])
        else:
            value = float(cell)
    except (ValueError, ArithmeticError):  # such as 0^-1
        raise Bad(rule, cell) from None
    if math.isnan(value) and rule == LOSS and is_text:
        return math.inf
    if not RULES[rule](value):
        raise Bad(rule, cell)
    return value


def flag(cell: Any) -> bool:
    """Return what a cell says: true or false."""
    said = "" if is_empty(cell) else str(cell).strip().lower()
    if said not in _FLAGS:
        raise Bad("true or false", cell)
    return _FLAGS[said]


def status(cell: Any) -> str:
    """Return how a run ended, by one of `STATES`."""
    said = "" if is_empty(cell) else str(cell).strip().lower().rpartition(".")[-1]
    if said not in STATES:
        raise Bad(f"one of {', '.join(STATUSES)}", cell)
    return STATES[said]


def exponents_of(name: str) -> tuple[float, str] | None:
    """Return the base of the exponents that a column of this name holds, and the name of the powers; None if none.

    `log2_lr` holds powers of 2 of `lr`.
    """
    if found := _LOG_FIRST.fullmatch(name.strip()):
        return float(found[2]), (found[1] or "") + found[3].strip()
    if found := _LOG_LAST.fullmatch(name.strip()):
        return float(found[2]), found[1].strip()
    return None


def with_points(columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Return columns of numbers with points as their decimal marks, where Excel wrote commas.

    Commas are decimal marks if one of them cannot stand between thousands, and no number has a point.
    """
    every = [cell for cells in columns.values() for cell in cells]
    texts = [cell for cell in every if isinstance(cell, str)]
    fractions = (cell for cell in every if isinstance(cell, float) and math.isfinite(cell) and not cell.is_integer())
    if any("." in text for text in texts) or any(fractions):
        return dict(columns)
    if not any(_COMMA.fullmatch(text) and not _THOUSANDS.fullmatch(text) for text in texts):
        return dict(columns)
    return {
        name: [cell.replace(",", ".") if isinstance(cell, str) and _COMMA.fullmatch(cell) else cell for cell in cells]
        for name, cells in columns.items()
    }
