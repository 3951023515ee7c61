"""Sections: pydantic models of a YAML file's parts, and their errors in the words of the file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hpxfer.errors import HpxferError, cut, joined, shown
from hpxfer.spec.key_names import which_key
from hpxfer.spec.number_text import how_to_write, is_quoted
from hpxfer.spec.yaml_file import KeyPath, YamlFile, parse_yaml

M = TypeVar("M", bound=BaseModel)

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
# Section -> an example of its long form.
_EXAMPLES = {
    "Length": "{fraction: 0.1}",
    "GridValues": "{log2: [-9, -4]}",
    "ScheduleSpec": "{decay: cosine}",
    "DataSpec": "{source: builtin:stdlib}",
    "JudgeSpec": "{hp: lr}",
    "RegretLimit": "{loss: 0.01}",
    "BalanceSpec": "{bias: sign}",
    "ArmHPs": "{lr: 0.01}",
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
        return f"{where}: unknown key; {which_key(str(loc[-1]), model, in_file(file, error['loc'][:-1]), legal)}"
    if kind == "missing":
        return f"{file.where(loc)}: must be given"
    if kind in ("unregistered", "own"):
        return f"{where}: {error['msg']}"
    if kind == "invalid_key" or loc[-1] == "[key]":
        section = in_file(file, loc[:-1] if kind == "invalid_key" else loc[:-2])
        spelled = _as_spelled(file, section, error["input"])
        where = file.where((*section, spelled)).removesuffix(": ")
        of_number = re.fullmatch(r"\d{3}", spelled)  # the rest of `{steps: 1,000}`
        fix = "write a number without commas: 1_000 and not 1,000" if of_number else "quote it"
        return f"{where}: a key must be text, got {cut(spelled) or 'none'}; {fix}"
    match kind:
        case "tuple_type":
            rule = "a list"
        case "dict_type":
            rule = "a mapping"
        case "bool_type":
            rule = "true or false"
        case "model_type":
            section_name = error["ctx"]["class_name"]
            form, example = _FORMS.get(section_name), _EXAMPLES.get(section_name)
            rule = " or ".join([*([form] if form else []), "a mapping" + (f" such as {example}" if example else "")])
        case _:
            rule = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    hint = None
    if kind in ("int_type", "float_type") or is_quoted(error["input"]):
        hint = how_to_write(error["input"], whole=kind == "int_type", at=loc)
    return f"{where}: must be {rule}, got {got}" + (f"; {hint}" if hint else "")


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


def _as_spelled(file: YamlFile, section: KeyPath, key: Any) -> str:
    """Return how the file spells a key of a section that is no text, e.g. `true` for True and `0x2` for 2."""
    for text in (str(path[-1]) for path in file.lines if path and path[:-1] == section):
        with suppress(HpxferError):
            if repr(parse_yaml(text, file.name).data) == repr(key):
                return text
    return str(key)
