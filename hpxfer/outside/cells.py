"""Cells of a table as values: each function returns the value of a cell, or raises `Bad` with the rule it breaks."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from hpxfer.errors import cut, shown

MOST_CHARACTERS = 80  # of a name: figures and file names show it
LARGEST = 1e30  # of a number: squares of larger ones overflow
_POWER = re.compile(r"(\d+\.?\d*)\s*(?:\^|\*\*)\s*\(?\s*([-+]?\d+\.?\d*)\s*\)?")  # 2^-9, 2**-9, 10^(-3)
_FRACTION = re.compile(r"(\d+\.?\d*)\s*/\s*(\d+\.?\d*)")
_COMMA = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+")
# The name of a column of exponents: log2_lr, log10(lr), lr_log2.
_LOG_FIRST = re.compile(r"(.*[./])?log_?(2|10)[\s_(\[-]*([^\W\d].*?)[)\]]?", re.IGNORECASE)
_LOG_LAST = re.compile(r"(.+?)[\s_(\[-]+log_?(2|10)[)\]]?", re.IGNORECASE)
_TRUE, _FALSE = ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0")


class Bad(ValueError):
    """A cell breaks a rule. The text is the rule and what was got."""

    def __init__(self, rule: str, cell: object) -> None:
        super().__init__(f"must be {rule}, got {shown(cell) if not is_empty(cell) else 'an empty cell'}")


def is_empty(cell: object) -> bool:
    """Return whether a cell holds nothing: None, NaN, NA, or text without a character."""
    if cell is None:
        return True
    if isinstance(cell, str):
        return not cell.strip()
    try:
        return bool(cell != cell)
    except (TypeError, ValueError, ArithmeticError):  # pandas.NA has no truth; an array has several
        return type(cell).__name__ == "NAType"


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


def number(cell: Any, rule: str = "a number") -> float:
    """Return the number that a cell holds, infinite ones included."""
    if is_empty(cell) or isinstance(cell, bool) or type(cell).__name__ == "bool":
        raise Bad(rule, cell)
    if isinstance(cell, str):
        if "_" in cell or not cell.isascii():  # which Python's own float would read
            raise Bad(rule, cell)
        if (value := power(cell)) is not None:
            return value
    elif not isinstance(cell, numbers.Real | Decimal):
        raise Bad(rule, cell)
    try:
        return float(cell)
    except (ValueError, OverflowError):
        raise Bad(rule, cell) from None


def power(cell: str) -> float | None:
    """Return the number that a power or a fraction spells, such as 2^-9, 2**-9 or 1/512; None for other text."""
    try:
        if found := _POWER.fullmatch(cell.strip()):
            return math.pow(float(found[1]), float(found[2]))
        if found := _FRACTION.fullmatch(cell.strip()):
            return float(found[1]) / float(found[2])
    except (ArithmeticError, ValueError):  # 0^-1, or too large
        pass
    return None


def exponents_of(name: str) -> tuple[float, str] | None:
    """Return the base of the exponents that a column of this name holds, and the name of the powers; None if none.

    `log2_lr` holds powers of 2 of `lr`.
    """
    if found := _LOG_FIRST.fullmatch(name.strip()):
        return float(found[2]), (found[1] or "") + found[3].strip()
    if found := _LOG_LAST.fullmatch(name.strip()):
        return float(found[2]), found[1].strip()
    return None


def has_decimal_commas(cells: Iterable[Any]) -> bool:
    """Return whether commas in the numbers of a table are decimal marks, as where Excel writes `;` between cells.

    They are if one of them cannot stand between thousands, and no number has a point.
    """
    sure = False
    for cell in cells:
        if isinstance(cell, str):
            if "," not in cell and "." not in cell:
                continue
            if "." in cell:
                return False
            sure = sure or bool(_COMMA.fullmatch(cell.strip()) and not _THOUSANDS.fullmatch(cell.strip()))
        elif isinstance(cell, float) and math.isfinite(cell) and not cell.is_integer():
            return False
    return sure


def with_point(cell: Any) -> Any:
    """Return a cell with its decimal comma as a point."""
    return cell.replace(",", ".") if isinstance(cell, str) and _COMMA.fullmatch(cell.strip()) else cell


def finite(cell: Any, rule: str) -> float:
    """Return a number that is not infinite, nor so large that its square is."""
    value = number(cell, rule)
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise Bad(rule, cell)
    return value


def positive(cell: Any) -> float:
    """Return a number above 0."""
    rule = f"a number from {1 / LARGEST:g} to {LARGEST:g}"
    value = finite(cell, rule)
    if value < 1 / LARGEST:
        raise Bad(rule, cell)
    return value


def not_negative(cell: Any) -> float:
    """Return an HP: a number of at least 0."""
    rule = f"0 or a number from {1 / LARGEST:g} to {LARGEST:g}"
    value = finite(cell, rule)
    if value < 0 or 0 < value < 1 / LARGEST:
        raise Bad(rule, cell)
    return value


def whole(cell: Any) -> int:
    """Return a whole number."""
    rule = "a whole number"
    value = finite(cell, rule)
    if not value.is_integer() or abs(value) >= 2**53:
        raise Bad(rule, cell)
    return int(value)


def flag(cell: Any) -> bool:
    """Return what a cell says: true or false."""
    said = "" if is_empty(cell) else str(cell).strip().lower()
    if said not in (*_TRUE, *_FALSE):
        raise Bad("true or false", cell)
    return said in _TRUE
