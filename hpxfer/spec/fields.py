"""Fields: the types that the sections of a YAML file are made of."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from hpxfer.errors import nearest, shown
from hpxfer.registry import KINDS, rows_of
from hpxfer.scaling.shape import MAX_DIM, MAX_TOKENS

T = TypeVar("T")
MAX_POINTS = 10_000  # of one HP's range. More is a typing error in the step


def _to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _power_of_two(value: Any) -> Any:
    """Read `{log2: -6}` as 2^-6."""
    if isinstance(value, dict) and set(value) == {"log2"}:
        exponent = value["log2"]
        if isinstance(exponent, int | float) and not isinstance(exponent, bool):
            return power_of_two(exponent)
    return value


def power_of_two(exponent: float) -> float:
    """Return 2^exponent: infinity if no float is large enough, and zero if none is small enough."""
    if exponent < -2000:
        return 0.0
    return 2.0**exponent if exponent < sys.float_info.max_exp else math.inf


def into(key: str, *kinds: type) -> Callable[[Any], Any]:
    """Return a validator that reads a bare value of one of `kinds` as `{key: value}`."""

    def wrap(value: Any) -> Any:
        return {key: value} if isinstance(value, kinds) and not isinstance(value, bool) else value

    return wrap


Seq = Annotated[tuple[T, ...], BeforeValidator(_to_tuple)]


def whole(value: Any) -> Any:
    """Read a whole number that is written as a float, such as `1e3`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(whole)  # the last in an Annotated, so that the JSON Schema keeps the limits before it
# No dimension or count is as large. Beyond it, arithmetic on sizes would no longer be exact.
Count = Annotated[int, Field(ge=1, le=MAX_DIM), WHOLE]
CountOrNone = Annotated[int, Field(ge=0, le=MAX_DIM), WHOLE]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS), WHOLE]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """A part of the file: frozen, strict, no key beyond its fields. The text below a field is its documentation."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class PowerOfTwo(Section):
    """A power of two: `{log2: -6}` is 2^-6."""

    log2: float
    """The exponent."""


class GridValues(Section):
    """The values of one HP: a list, or `{log2: [low, high], step: 1}`, or `{around: [low, high], step: 1}`, both ends
    included."""

    values: Seq[float] | None = None
    """The values themselves. A bare list is short for this key."""
    log2: Seq[float] | None = None
    """The exponents of the lowest and the highest value: `[-9, -4]` is 2^-9 to 2^-4. Give this or `values`."""
    around: Seq[float] | None = None
    """Octaves from the HP's base value: `[-2, 2]` is from a quarter of it to four times it. The base value may come
    from a recipe. A stored sweep has exponents instead."""
    step: Annotated[float, Field(gt=0)] = 1.0
    """The distance between two exponents, in octaves."""

    @model_validator(mode="after")
    def _is_short(self) -> GridValues:
        """Refuse more values than anyone means, so that `numbers` may be called before other rules are checked."""
        few_given = len(self.values or ()) <= MAX_POINTS
        if not few_given or (self.log2 and (max(self.log2) - min(self.log2)) / self.step >= MAX_POINTS):
            raise ValueError(f"at most {MAX_POINTS} values")
        return self

    def numbers(self) -> tuple[float, ...]:
        """Return the values, ascending."""
        if self.log2 is None:
            return tuple(sorted(self.values or ()))
        low, high = self.log2
        return tuple(power_of_two(low + k * self.step) for k in range(math.floor((high - low) / self.step + 1e-9) + 1))


# `json_schema_input_type` is what a file may say. `hpxfer schema` needs it, because a validator hides it.
Number = Annotated[float, BeforeValidator(_power_of_two, json_schema_input_type=float | PowerOfTwo)]
Values = Annotated[
    GridValues, BeforeValidator(into("values", list, tuple), json_schema_input_type=list[float] | GridValues)
]


class Registered:
    """The rule that a text is the name of a registered row: `gate: Annotated[str, Registered("gate")]`.

    A row is looked up by name alone, so that the code behind it is not imported. The validation context may hold more
    names by kind: those that the plug-ins of a stored sweep registered.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Offer an editor the names known here. Any other text is legal too where a plug-in may register it."""
        names = {"enum": list(rows_of(self._kind).names())}
        return {"anyOf": [names, handler(schema)]} if self._kind in KINDS else names

    def _known(self, name: str, info: ValidationInfo) -> str:
        rows = rows_of(self._kind)
        if name not in rows and name not in (info.context or {}).get(self._kind, ()):
            why = f"unknown {self._kind} {shown(name)}; {nearest(name, rows.names())}"
            raise PydanticCustomError("unregistered", "{why}", {"why": why})
        return rows.spelled(name)
