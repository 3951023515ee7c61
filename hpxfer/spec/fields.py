"""Fields and sections: the types that a YAML file is made of, and their errors in the words of the file."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
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
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from hpxfer.errors import MAX_SHOWN, HpxferError, joined, nearest, shown
from hpxfer.registry import KINDS, rows_of
from hpxfer.scaling.muon import MOMENTUM, kind_of
from hpxfer.scaling.muon import NAME as MUON
from hpxfer.scaling.shape import MAX_DIM, MAX_TOKENS
from hpxfer.spec.yaml_file import KeyPath, YamlFile, spell

M = TypeVar("M", bound=BaseModel)
Problem = tuple[KeyPath, str]  # the key path, and what is wrong with it
WhyNot = Callable[[str], str | None]  # returns why an HP cannot be tuned at the base, or None

# The likeness of two names from which one is meant by the other: of a key of the same section, and of any other.
_ALIKE, _ALIKE_ELSEWHERE = 0.7, 0.85
# Parts of a key path that no file spells: keys that a short form leaves out, and the members of a union.
_LEFT_OUT = ("values", "shapes", "name", "table", "float", "str", "mapping", "number", "list", "dict")
# Type of pydantic's error -> the rule in our words. A section may have a short form, too.
_RULES = {
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "bool_type": "true or false",
    "invalid-json-value": "text, a finite number, true, false, null, a list or a mapping",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}
# Python's spelling of a value -> that of a YAML file.
_YAML = {"True": "true", "False": "false", "None": "null"}
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
        lines = [_explain(model, file, found, at) for found in error.errors()]
        raise HpxferError(joined(dict.fromkeys(lines))) from None


def in_file(file: YamlFile, path: KeyPath) -> KeyPath:
    """Return a key path as the file spells it: without the keys that a short form leaves out."""
    out: KeyPath = ()
    for part in path:
        left_out = part in _LEFT_OUT or (part == "steps" and out[-1:] in (("warmup",), ("decay_length",)))
        if not left_out or not out or (*out, part) in file.lines:
            out = (*out, part)
    return out


def _explain(model: type[BaseModel], file: YamlFile, error: Any, at: KeyPath) -> str:
    """Return an error of pydantic in the words of the file."""
    loc, kind, context, given = (*at, *error["loc"]), error["type"], error.get("ctx", {}), error["input"]
    above, got = in_file(file, loc[:-1]), _YAML.get(shown(given), shown(given))
    where = file.where(in_file(file, loc))
    match kind:
        case "extra_forbidden":
            of_family = loc[:1] == ("model",) and any(map(_rule, model.model_fields.values()))
            family = family_in(file.data["model"]) if of_family else None
            return f"{file.where((*above, loc[-1]))}: {_unknown(model, error['loc'], family)}"
        case "missing":
            return f"{file.where((*above, loc[-1]))}: must be given"
        case "unregistered" | "own":
            return f"{where}: {error['msg']}"
    if kind == "invalid_key" or loc[-1] == "[key]":
        where = file.where((*(above if kind == "invalid_key" else above[:-1]), str(given))).removesuffix(": ")
        if kind in ("invalid_key", "string_type"):
            return f"{where}: a key must be text, got {got}; quote it"
    rule = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    rule = _RULES[kind].format_map(context) if kind in _RULES else _YAML.get(rule, rule)
    form = _FORMS.get(context.get("class_name", "")) if kind == "model_type" else None
    return f"{where}: must be {f'{form} or {rule}' if form else rule}, got {got}"


class OfFamily:
    """The rule that a section is that of its family, whose row has its class: `model: Annotated[Base, OfFamily(...)]`.

    `stored` is the class of a section whose family a plug-in registered that is not loaded. The validation context says
    which families these are, as in `Registered`.
    """

    def __init__(self, stored: type[BaseModel]) -> None:
        self._stored = stored

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        self._kind = source
        return core_schema.with_info_plain_validator_function(self._section)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(core_schema.union_schema([kind.__pydantic_core_schema__ for kind in self.members().values()]))

    @staticmethod
    def members() -> dict[str, type[BaseModel]]:
        """Return family -> the class of its section."""
        return {row.name: row.section for row in rows_of("family").rows()}

    def _section(self, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, self._kind):
            return given
        if not isinstance(given, dict):
            raise PydanticCustomError("dict_type", "a mapping")
        rows, name = rows_of("family"), family_in(given)
        if isinstance(name, str) and name in rows:
            return rows.get(name).section.model_validate(given, context=info.context)
        if isinstance(name, str) and name in (info.context or {}).get("family", ()):
            return self._stored.model_validate(given, context=info.context)
        why = f"unknown family {shown(name)}; {nearest(str(name), rows.names())}"
        wrong = "missing" if name is None else PydanticCustomError("unregistered", "{why}", {"why": why})
        raise ValidationError.from_exception_data("model", [{"type": wrong, "loc": ("family",), "input": given}])


def _unknown(model: type[BaseModel], loc: KeyPath, family: Any) -> str:
    """Return the nearest legal key: of the section, else of the whole file with its path, else all of the section.

    The `family` is that of the section `model`, None outside of it.
    """
    name, legal = str(loc[-1]), _legal_keys(model, loc[:-1], family)
    of_others = family is not None and any(path[0] == "model" and path[-1] == name for path in _paths(model))
    rule = f"unknown key in the family {family}" if of_others else "unknown key"
    if get_close_matches(name[:MAX_SHOWN], legal, n=1, cutoff=_ALIKE):
        return f"{rule}; {nearest(name, legal)}"
    elsewhere = {str(path[-1]): path for path in reversed(list(_paths(model, family))) if path[1:]}  # the first counts
    close = get_close_matches(name[:MAX_SHOWN], elsewhere, n=1, cutoff=_ALIKE_ELSEWHERE)
    return f"{rule}; " + (f"did you mean {shown(spell(elsewhere[close[0]]))}?" if close else nearest("", legal))


def family_in(model: Mapping[str, Any]) -> Any:
    """Return the family that a section `model` names. A preset is one of the GPT."""
    return model.get("family", "gpt" if "like" in model else None)


def _rule(field: FieldInfo) -> OfFamily | None:
    return next((each for each in field.metadata if isinstance(each, OfFamily)), None)


def _members(field: FieldInfo, family: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that a field may hold: where its rule is `OfFamily` that of the `family`, or of all."""
    if (rule := _rule(field)) is None:
        yield from _sections(field.annotation)
    else:
        members = rule.members()
        yield from (members[family],) if family in members else members.values()


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections inside a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)


def _paths(model: type[BaseModel], family: Any = None, above: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the key paths of a file. Keys inside lists and named parts, such as those of an axis, do not count.

    With a `family`, keys of other families do not count.
    """
    for name, field in model.model_fields.items():
        yield (*above, name)
        for kind in () if get_origin(field.annotation) in (dict, tuple) else _members(field, family):
            yield from _paths(kind, family, (*above, name))


def _legal_keys(model: type[BaseModel], loc: KeyPath, family: Any) -> list[str]:
    """Return the keys of the section at `loc` below `model`. A part of `loc` may choose a member of a union."""
    kinds, parts = [model], iter(loc)
    for part in parts:
        fields = [kind.model_fields[part] for kind in kinds if isinstance(part, str) and part in kind.model_fields]
        if fields:
            kinds = [kind for field in fields for kind in _members(field, family)] or kinds
            if get_origin(fields[0].annotation) is dict:
                next(parts, None)  # a name that the user gives, such as that of an axis
    return list(kinds[0].model_fields)


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


class Matching:
    """The rule that a pattern matches a text as a whole. A message has the `rule` in words, and the JSON Schema the
    pattern.
    """

    def __init__(self, pattern: str, rule: str) -> None:
        self._pattern, self._rule = pattern, rule

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^{self._pattern}$"}

    def _check(self, text: str) -> str:
        if not re.fullmatch(self._pattern, text):
            raise ValueError(self._rule)
        return text


def arm_name(name: str) -> str:
    """Refuse a name that cannot be part of labels in tables and figures."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", name):
        raise ValueError("at most 40 letters, digits, '.', '_' and '-', starting with a letter or digit")
    return name


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


def _ends(given: tuple[float, ...]) -> tuple[float, ...]:
    if len(given) != 2 or given[0] > given[1]:
        raise ValueError("[low, high] with low <= high")
    return given


Ends = Annotated[Seq[float], AfterValidator(_ends)]


class PowerOfTwo(Section):
    """A power of two: `{log2: -6}` is 2^-6."""

    log2: float
    """The exponent."""


class GridValues(Section):
    """The values of one HP: a list, or `{log2: [low, high], step: 1}`, or `{around: [low, high], step: 1}`, both ends
    included."""

    values: Seq[float] | None = None
    """The values themselves. A bare list is short for this key."""
    log2: Ends | None = None
    """The exponents of the lowest and the highest value: `[-9, -4]` is 2^-9 to 2^-4. Give this or `values`."""
    around: Ends | None = None
    """Octaves from the HP's base value: `[-2, 2]` is from a quarter of it to four times it. The base value may come
    from a recipe. A stored sweep has exponents instead."""
    step: Annotated[float, Field(gt=0)] = 1.0
    """The distance between two exponents, in octaves."""

    @model_validator(mode="after")
    def _has_one_form(self) -> GridValues:
        """Refuse more values than anyone means, so that `numbers` may be called before other rules are checked."""
        if sum(form is not None for form in (self.values, self.log2, self.around)) != 1:
            raise ValueError("a list of values, or one of {log2: [low, high]} and {around: [low, high]}")
        octaves = 0.0 if self.log2 is None else self.log2[1] - self.log2[0]
        if len(self.values or ()) > MAX_POINTS or octaves / self.step >= MAX_POINTS:
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


def with_momentum(given: Any) -> Any:
    """Return a sweep of Muon with the momentum of every public code, unless it gives one."""
    training, hps = (given.get(key) or {} for key in ("training", "hps")) if isinstance(given, dict) else ({}, {})
    if not isinstance(training, dict) or not isinstance(hps, dict) or "momentum" in hps:
        return given
    if kind_of(str(training.get("optimizer"))) != MUON:
        return given
    return {**given, "hps": {**hps, "momentum": MOMENTUM}}


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
        rows = rows_of(self._kind)
        names: dict[str, Any] = {"enum": list(rows.names())}
        if rows.options is not None:
            return {"anyOf": [names, {"type": "string", "pattern": rows.options}]}
        return {"anyOf": [names, handler(schema)]} if self._kind in KINDS else names

    def _known(self, name: str, info: ValidationInfo) -> str:
        rows = rows_of(self._kind)
        try:
            name = rows.spelled(name)
        except HpxferError as error:
            raise PydanticCustomError("unregistered", "{why}", {"why": str(error)}) from None
        if name not in rows and name not in (info.context or {}).get(self._kind, ()):
            why = f"unknown {self._kind} {shown(name)}; {nearest(name, rows.names())}"
            raise PydanticCustomError("unregistered", "{why}", {"why": why})
        return name
