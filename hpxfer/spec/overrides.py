"""Overrides: `--set training.steps=100` changes one key of a sweep file before the file is checked.

The value is YAML. `null` takes the key out. Below `grid` and `multipliers`, whose keys have dots, the rest of the path
is one key, `--set hps.multipliers.router.lr_mult=0.5`, but for a last part that is a key of values, such as `log2` in
`--set 'grid.router.lr_mult.log2=[-4, 0]'`. A relative path to data, to a recipe or to a plug-in starts at the current
folder, where the command is given, and not at the folder of the sweep file. This holds for paths inside a larger value
too, as in `--set 'data={source: "text:a.txt"}'`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.spec.data import from_folder
from hpxfer.spec.fields import GridValues
from hpxfer.spec.yaml_file import KeyPath, YamlFile, parse_yaml, spell
from hpxfer.storage.uri import is_uri

OPTION = "--set"
_KEYS_HAVE_DOTS = ("grid", "multipliers")
_FORMS = ("values", "log2", "around")  # of the values of an HP. One that is set replaces the form in the file
_INDEXED = r"((?:\[\d+\])*)"  # indices behind a key


def with_overrides(file: YamlFile, assignments: Sequence[str]) -> YamlFile:
    """Return a sweep file with some keys changed. Raise HpxferError for an assignment that cannot be made."""
    data, paths = file.data, []
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise HpxferError(f"{OPTION}: must be KEY=VALUE, got {shown(text)}; e.g. {OPTION} training.steps=100")
        path = _path(name.strip())
        data = _assigned(data, path, _value(path, value), ())
        paths.append(path)
    return replace(file, data=data, overridden=(*file.overridden, *paths))


def _path(name: str) -> KeyPath:
    """Return the key path that a name such as `axes.width[1]` spells."""
    out: KeyPath = ()
    rest = name
    while rest:
        if out and out[-1] in _KEYS_HAVE_DOTS:
            inner = re.fullmatch(rf"(.+)\.({'|'.join(GridValues.model_fields)}){_INDEXED}", rest)
            return (*out, rest) if inner is None else (*out, inner[1], inner[2], *_indices(inner[3]))
        found = re.match(rf"([^.\[\]]+){_INDEXED}(?:\.(?=.)|$)", rest)
        if found is None:
            raise HpxferError(f"{OPTION}: must name a key such as training.steps or seeds[0], got {shown(name)}")
        out = (*out, found[1], *_indices(found[2]))
        rest = rest[found.end() :]
    return out


def _indices(text: str) -> Iterator[int]:
    return map(int, re.findall(r"\d+", text))


def _value(path: KeyPath, text: str) -> Any:
    return _from_here(path, parse_yaml(text, f"{OPTION} {spell(path)}").data)


def _from_here(path: KeyPath, value: Any) -> Any:
    """Return a value for a key, with its relative paths to data and files starting at the current folder."""
    if isinstance(value, dict):
        return {key: _from_here((*path, key), one) for key, one in value.items()}
    if isinstance(value, list):
        return [_from_here((*path, index), one) for index, one in enumerate(value)]
    if not isinstance(value, str):
        return value
    if _names_data(path):
        return from_folder(value, Path.cwd())
    return str(Path.cwd() / value) if _names_file(path, value) and not is_uri(value) else value


def _names_data(path: KeyPath) -> bool:
    if path[0] == "axes":  # a point's own data, in either of its forms
        return path[-1] == "data" or path[-2:] == ("data", "source")
    return path in (("data", "source"), ("data", "validation"))


def _names_file(path: KeyPath, value: str) -> bool:
    if path[0] == "plugins":
        return value.endswith(".py")  # any other plug-in is a module
    return path in (("hps", "recipe"), ("hps", "recipe", "file"))


def _assigned(data: Any, path: KeyPath, value: Any, above: KeyPath) -> Any:
    """Return data with a value at a key path, or without the key if the value is None. The data itself stays."""
    key, *rest = path
    here = spell((*above, key))
    if isinstance(key, int):
        if not isinstance(data, list) or key >= len(data):
            got = f"a list of {len(data)}" if isinstance(data, list) else shown(data)
            raise HpxferError(f"{OPTION} {here}: must be an entry of a list that the file has, got {got}")
        changed = value if not rest else _assigned(data[key], tuple(rest), value, (*above, key))
        return [*data[:key], *([] if changed is None and not rest else [changed]), *data[key + 1 :]]
    if key in _FORMS and not rest and value is not None and above[:1] not in ((), ("axes",)):
        data = {name: each for name, each in data.items() if name not in _FORMS} if isinstance(data, dict) else {}
    if data is not None and not isinstance(data, dict):
        raise HpxferError(f"{OPTION} {here}: must be a key of a mapping, got {shown(data)} in the file; set that whole")
    out = dict(data or {})
    if rest:
        out[key] = _assigned(out.get(key), tuple(rest), value, (*above, key))
    elif value is None:
        if key not in out:
            fix = nearest(str(key), out) if out else "nothing stands there"
            raise HpxferError(f"{OPTION} {here}: must be a key that the file has, because null takes it out; {fix}")
        del out[key]
    else:
        out[key] = value
    return out
