"""Number text: what a text that stands where a number must be is as a number, and how a file writes it."""

from __future__ import annotations

import math
import re
from typing import Any

_NUMBER = r"[-+]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_UNITS = {"%": 0.01, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_LONGEST = 100  # characters. Longer texts are no numbers that people write


def how_to_write(text: Any, *, whole: bool, at: tuple[Any, ...] = ()) -> str | None:
    """Return how a file writes the number that a text means, e.g. `write 500000` for `0.5M`, or None if it means none.

    `at` is the path of the key: those of HPs may be written as powers of two.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    text = text.strip()
    if is_quoted(text):
        return f"write {text} without quotes" if _is_legal(float(text), whole) else None
    value = _value(text)
    if value is None or not _is_legal(value, whole):
        return None
    fix = f"write {_spelled(value)}"
    if re.match(r"2(\^|\*\*)", text) and at[:1] in (("hps",), ("grid",)):
        exponent = f"{math.log2(value):g}"
        return f"write {{log2: {exponent}}}" if at[0] == "hps" else f"{fix}, or exponents as {{log2: [low, high]}}"
    return fix


def is_quoted(text: Any) -> bool:
    """Return whether a text is a number in quotes."""
    return isinstance(text, str) and len(text) <= _LONGEST and bool(re.fullmatch(_NUMBER, text.strip()))


def _is_legal(value: float, whole: bool) -> bool:
    return math.isfinite(value) and (not whole or value == round(value))


def _spelled(value: float) -> str:
    return str(round(value)) if value == round(value) else f"{value:.12g}"


def _value(text: str) -> float | None:
    """Return the number that a text means: `0.5M`, `10%`, `2^-9`, `2**10`, `1/3`, `1,000`, `10 000` or `200 steps`."""
    if re.fullmatch(r"\d{1,3}([, ']\d{3})+", text):
        return float(re.sub(r"\D", "", text))
    if found := re.fullmatch(rf"({_NUMBER})\s*([%kKmMbBgGtT])", text):
        return float(f"{float(found[1]) * _UNITS[found[2].lower()]:.12g}")
    if found := re.fullmatch(rf"({_NUMBER})\s+[a-z]+", text):
        return float(found[1])
    if found := re.fullmatch(rf"({_NUMBER})\s*(\^|\*\*|\*|/)\s*({_NUMBER})", text):
        one, sign, other = float(found[1]), found[2], float(found[3])
        try:
            power = one**other if sign in ("^", "**") else one * other if sign == "*" else one / other
        except (OverflowError, ZeroDivisionError):
            return None
        return power if isinstance(power, float) else None  # the root of a negative number is none
    return None
