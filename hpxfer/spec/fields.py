"""Fields and sections: the types that a YAML file is made of, and their errors in the words of the file."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from hpxfer.errors import MAX_SHOWN, HpxferError, joined, nearest, shown
from hpxfer.registry import KINDS, rows_of
from hpxfer.scaling.shape import MAX_DIM, MAX_TOKENS
from hpxfer.spec.yaml_file import KeyPath, YamlFile, spell

M = TypeVar("M", bound=BaseModel)

# The likeness of two names from which one is meant by the other: of a key of the same section, and of any other.
_ALIKE, _ALIKE_ELSEWHERE = 0.7, 0.85
# Parts of a key path that no file spells: keys that a short form leaves out, and the members of a union.
_LEFT_OUT = ("values", "shapes", "name", "table", "float", "str", "mapping", "number")
# Section -> its short form.
_FORMS = {
    "ParameterizationSpec": "a name",
    "PluginSpec": "a name",
    "RecipeRef": "a path",
    "AxisSpec": "a list such as [64, 128]",
    "Length": "a whole number of steps",
    "GridValues": "a list such as [0.001, 0.01]",
}


def validated(
    model: type[M], file: YamlFile, data: Any = None, at: KeyPath = (), *, stored: Mapping[str, Collection[str]] = {}
) -> M:
    """Return the file's data, or the `data` that it has `at` a key path, as `model`.

    `stored` holds names by kind that count as registered. Raises HpxferError with one line for each broken rule.
    """
    try:
        return model.model_validate(file.data if data is None else data, context=dict(stored))
    except ValidationError as error:
        lines = (_explain(model, file, found, at) for found in error.errors())
        raise HpxferError(joined(_once(lines))) from None


def _once(lines: Iterable[str]) -> Iterator[str]:
    """Yield each line once."""
    seen: set[str] = set()
    for line in lines:
        if line not in seen:
            seen.add(line)
            yield line


def in_file(file: YamlFile, path: KeyPath) -> KeyPath:
    """Return a key path as the file spells it: without the keys that a short form leaves out."""
    out: KeyPath = ()
    for part in path:
        left_out = part in _LEFT_OUT or (part == "steps" and out[-1:] in (("warmup",), ("decay_length",)))
        if left_out and out and (*out, part) not in file.lines:
            continue
        out = (*out, part)
    return out


def _explain(model: type[BaseModel], file: YamlFile, error: Any, at: KeyPath) -> str:
    loc, kind = (*at, *error["loc"]), error["type"]
    where = file.where(in_file(file, loc))
    got = shown(error["input"])
    if kind == "extra_forbidden":
        legal = _legal_keys(model, error["loc"][:-1])
        return f"{where}: unknown key; {_nearest(str(loc[-1]), model, legal)}"
    if kind == "missing":
        return f"{file.where(loc)}: must be given"
    if kind in ("unregistered", "own"):
        return f"{where}: {error['msg']}"
    if kind == "invalid_key" or loc[-1] == "[key]":
        section = in_file(file, loc[:-1] if kind == "invalid_key" else loc[:-2])
        where = file.where((*section, str(error["input"]))).removesuffix(": ")
        return f"{where}: a key must be text, got {got}; quote it"
    match kind:
        case "tuple_type":
            rule = "a list"
        case "dict_type":
            rule = "a mapping"
        case "bool_type":
            rule = "true or false"
        case "model_type":
            form = _FORMS.get(error["ctx"]["class_name"])
            rule = " or ".join([*([form] if form else []), "a mapping"])
        case _:
            rule = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{where}: must be {rule}, got {got}"


def _nearest(name: str, model: type[BaseModel], legal: Sequence[str]) -> str:
    """Return the nearest legal key: of the section, else of the whole file with its path, else all of the section."""
    if get_close_matches(name[:MAX_SHOWN], legal, n=1, cutoff=_ALIKE):
        return nearest(name, legal)
    elsewhere = {str(path[-1]): path for path in reversed(list(_paths(model))) if path[1:]}  # of two paths the first
    close = get_close_matches(name[:MAX_SHOWN], elsewhere, n=1, cutoff=_ALIKE_ELSEWHERE)
    return f"did you mean {shown(spell(elsewhere[close[0]]))}?" if close else nearest("", legal)


def _paths(model: type[BaseModel], above: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the key paths of a file. Keys inside lists and named parts, such as those of an axis, do not count."""
    for name, field in model.model_fields.items():
        yield (*above, name)
        for kind in () if get_origin(field.annotation) in (dict, tuple) else _kinds(field.annotation):
            yield from _paths(kind, (*above, name))


def _kinds(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that a field may hold: a section, or a section or None."""
    parts = (annotation, *get_args(annotation))
    yield from (kind for kind in parts if isinstance(kind, type) and issubclass(kind, BaseModel))


def _legal_keys(model: type[BaseModel], loc: KeyPath) -> list[str]:
    """Return the keys of the section at `loc` below `model`."""
    parts = iter(loc)
    for part in parts:
        if isinstance(part, str) and part in model.model_fields:
            annotation = model.model_fields[part].annotation
            model = _section(annotation) or model
            if get_origin(annotation) is dict:
                next(parts, None)  # a name that the user gives, such as that of an axis
    return list(model.model_fields)


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the first section inside a type annotation, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section(part))), None)


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


Problem = tuple[KeyPath, str]  # the key path, and what is wrong with it and how to fix it
WhyNot = Callable[[str], str | None]  # returns why an HP cannot be tuned at the base, or None
