"""From a sweep file to a SweepSpec and back; every error says where, what rule, what was given and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hpxfer.errors import HpxferError, nearest
from hpxfer.spec.checks import problems
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.yaml_file import Path_, YamlFile, parse_yaml, read_yaml, write_yaml

# Parts of a key path that a short form leaves out, and the members of a union, which no file spells.
_LEFT_OUT = ("values", "shapes", "name", "float", "str")
# What may stand where a section with a short form is wanted.
_FORMS = {"ParameterizationSpec": "a name", "AxisSpec": "a list", "GridValues": "a list"}


def load_sweep(path: str | Path) -> SweepSpec:
    """Return the checked sweep in a YAML file.

    A relative data path in it starts at the file's folder. Raises HpxferError with one line for each broken rule.
    """
    spec = _checked(read_yaml(path))
    kind, _, rest = spec.data.source.partition(":")
    if kind == "builtin" or Path(rest).is_absolute():
        return spec
    absolute = Path(path).resolve().parent / rest
    return spec.model_copy(update={"data": spec.data.model_copy(update={"source": f"{kind}:{absolute}"})})


def parse_sweep(text: str, name: str = "<sweep>") -> SweepSpec:
    """Return the checked sweep in `text`; `name` stands for the file in messages."""
    return _checked(parse_yaml(text, name))


def dump_sweep(spec: SweepSpec) -> str:
    """Return YAML that loads to an equal sweep."""
    return write_yaml(spec.model_dump(mode="json", exclude_none=True))


def _checked(file: YamlFile) -> SweepSpec:
    if not isinstance(file.data, dict):
        got = "an empty file" if file.data is None else type(file.data).__name__
        raise HpxferError(f"{file.where(())}: must be a mapping that starts with name:, got {got}")
    try:
        spec = SweepSpec.model_validate(file.data)
    except ValidationError as error:
        raise HpxferError("\n".join(dict.fromkeys(_explain(file, one) for one in error.errors()))) from None
    broken = [f"{file.where(_in_file(file, path))}: {message}" for path, message in problems(spec)]
    if broken:
        raise HpxferError("\n".join(broken))
    return spec


def _in_file(file: YamlFile, path: Path_) -> Path_:
    """Return the path as it stands in the file, without the keys that a short form leaves out."""
    out: Path_ = ()
    for part in path:
        if part in _LEFT_OUT and out and (*out, part) not in file.lines:
            continue
        out = (*out, part)
    return out


def _explain(file: YamlFile, error: Any) -> str:
    loc, kind = error["loc"], error["type"]
    where = file.where(_in_file(file, loc))
    got = repr(error["input"])
    got = got if len(got) <= 80 else got[:77] + "..."
    if kind == "extra_forbidden":
        return f"{where}: unknown key; {nearest(str(loc[-1]), _legal_keys(loc[:-1]))}"
    if kind == "missing":
        return f"{file.where(loc)}: must be given"
    if kind == "invalid_key" or loc[-1] == "[key]":
        section = loc[:-1] if kind == "invalid_key" else loc[:-2]
        return f"{file.where((*section, str(error['input'])))}: a key must be text, got {got}; quote it"
    match kind:
        case "tuple_type":
            rule = "a list"
        case "dict_type":
            rule = "a mapping"
        case "model_type":
            form = _FORMS.get(error["ctx"]["class_name"])
            rule = f"{form} or a mapping" if form else "a mapping"
        case _:
            rule = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{where}: must be {rule}, got {got}"


def _legal_keys(loc: Path_) -> list[str]:
    """Return the keys of the section at `loc`."""
    model: type[BaseModel] = SweepSpec
    for part in loc:
        if isinstance(part, str) and part in model.model_fields:
            model = _section(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the first section named inside a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _section(one))), None)
