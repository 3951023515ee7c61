"""Overrides: `--set training.steps=100` changes one key of a sweep file before the file is checked.

The value is YAML. `null` takes the key out. Below `grid` and `multipliers`, whose keys have dots, the rest of the path
is one key: `--set hps.multipliers.router.lr_mult=0.5`. A relative path to data or to a recipe starts at the current
folder, where the command is given, and not at the folder of the sweep file.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, shown
from hpxfer.registry import registry
from hpxfer.spec.yaml_file import KeyPath, YamlFile, parse_yaml, spell
from hpxfer.storage.uri import is_uri

OPTION = "--set"
_KEYS_HAVE_DOTS = ("grid", "multipliers")
_PATHS = {("data", "source"): True, ("data", "validation"): True, ("hps", "recipe"): False}  # whether it names data


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
            return (*out, rest)
        found = re.match(r"([^.\[\]]+)((?:\[\d+\])*)(?:\.(?=.)|$)", rest)
        if found is None:
            raise HpxferError(f"{OPTION}: must name a key such as training.steps or seeds[0], got {shown(name)}")
        out = (*out, found[1], *(int(index) for index in re.findall(r"\d+", found[2])))
        rest = rest[found.end() :]
    return out


def _value(path: KeyPath, text: str) -> Any:
    value = parse_yaml(text, f"{OPTION} {spell(path)}").data
    if path not in _PATHS or not isinstance(value, str):
        return value
    kind, colon, rest = value.partition(":") if _PATHS[path] else ("", "", value)
    if _PATHS[path] and (kind not in registry("data source") or not registry("data source").get(kind).is_path):
        return value
    if is_uri(rest):
        return value
    here = str(Path.cwd())
    return f"{kind}{colon}{Path(glob.escape(here) if _PATHS[path] else here) / rest}"


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
    if data is not None and not isinstance(data, dict):
        raise HpxferError(f"{OPTION} {here}: must be a key of a mapping, got {shown(data)} in the file; set that whole")
    out = dict(data or {})
    if rest:
        out[key] = _assigned(out.get(key), tuple(rest), value, (*above, key))
    elif value is None:
        out.pop(key, None)
    else:
        out[key] = value
    return out
