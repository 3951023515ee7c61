"""Sections: pydantic models of a YAML file's parts, and their errors in the words of the file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hpxfer.errors import MAX_SHOWN, HpxferError, joined, nearest, shown
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
