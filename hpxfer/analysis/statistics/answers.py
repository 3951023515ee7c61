"""The answers of a statistic. A mistake in a statistic of the user's becomes a message that says where it is."""

from __future__ import annotations

import inspect
import json
import reprlib
import traceback
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.errors import HpxferError, shown
from hpxfer.host import json_ready


def answers_of(statistic: Statistic, inputs: Inputs, module: str | None) -> tuple[Any, ...]:
    """Return the answers of a statistic that `module` registered; None is hpxfer itself.

    Raises HpxferError if it has none, or if a statistic of the user's fails or returns what no report can show.
    """
    if module is None:
        return tuple(inputs.once(statistic.compute))
    try:
        found = inputs.once(statistic.compute)
    except HpxferError:
        raise
    except Exception as error:
        raise HpxferError(f"{type(error).__name__}: {error} ({_raised_at(error, statistic, module)})") from error
    if (why := _refused(statistic, found)) is not None:
        raise HpxferError(f"TypeError: {why} ({_defined_at(statistic, module)})")
    return tuple(found)


def _refused(statistic: Statistic, found: Any) -> str | None:
    """Return why no report can show what a statistic returned; None if every report can."""
    rule = "compute must return a sequence of frozen dataclasses"
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        return f"{rule}, got {reprlib.repr(found)}"
    for answer in found:
        if not _is_frozen(answer):
            return f"{rule}, got {reprlib.repr(answer)} in it"
        for name in (statistic.parts, statistic.answer):
            if name is not None and not hasattr(answer, name):
                return (
                    f"an answer must have the field {shown(name)} of its Statistic, got {type(answer).__name__} without"
                )
        parts = () if statistic.parts is None else getattr(answer, statistic.parts)
        if not isinstance(parts, Sequence) or not all(map(_is_frozen, parts)):
            return f"{statistic.parts} must be a sequence of frozen dataclasses, got {reprlib.repr(parts)}"
        for field in fields(answer):
            reason = getattr(answer, field.name) if field.name.startswith("why_") else None
            if not isinstance(reason, str | None):
                return f"{field.name} must be a string or None, got {reprlib.repr(reason)}"
        try:
            json.dumps(json_ready(asdict(answer)), allow_nan=False)
        except Exception as error:
            return f"an answer must hold what JSON can hold, got {type(answer).__name__}: {error}"
    return None


def _is_frozen(answer: Any) -> bool:
    return is_dataclass(answer) and not isinstance(answer, type) and bool(answer.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _raised_at(error: Exception, statistic: Statistic, module: str) -> str:
    """Return the file and line of the user's module that an error passed last."""
    own = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if f"{frame.f_globals.get('__name__')}.".startswith(f"{module}.")
    ]
    return own[-1] if own else _defined_at(statistic, module)


def _defined_at(statistic: Statistic, module: str) -> str:
    """Return the file and line of a statistic's function; the module of one that has none."""
    code = getattr(inspect.unwrap(statistic.compute), "__code__", None)
    return module if code is None else f"{code.co_filename}:{code.co_firstlineno}"
