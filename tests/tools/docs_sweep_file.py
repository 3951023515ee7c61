"""The reference of the sweep file, made from its JSON Schema: a section per mapping, a row per key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs_markdown import anchor, table

from hpxfer.spec.load import sweep_schema

_REF = "#/$defs/"
_NAMES = {"axes": "NAME", "grid": "HP", "values_of": "NAME", "multipliers": "NAME", "parameterizations": "[i]"}
_PLURALS = {"number": "numbers", "integer": "integers", "text": "texts"}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def sweep_file_markdown(root: Path) -> str:
    """Return every key of a sweep file with its type, its default and its rule."""
    schema = sweep_schema()
    places = _places(schema)
    titles = _titles(schema, places)
    parts = ["### The file", schema["description"], _keys(schema, titles)]
    for name, title in titles.items():
        section = schema["$defs"][name]
        others = [f"`{path}`" for path in places[name] if path != title]
        if not title.startswith("`"):
            parts += [f"### {title}", *([f"Also at {', '.join(others)}."] if others else [])]
            parts += [section["description"], _keys(section, titles)]
    return "\n\n".join(parts)


def _titles(schema: dict[str, Any], places: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return section -> its heading, a key path; for a section of one required key that key with its type, in code."""
    found: dict[str, str] = {}
    for name, paths in places.items():
        keys = schema["$defs"][name]["properties"]
        if len(keys) == 1 and schema["$defs"][name].get("required"):
            ((key, entry),) = keys.items()
            found[name] = f"`{{{key}: {spell(entry, {})}}}`"
        else:
            others = {path for other, theirs in places.items() if other != name for path in theirs}
            found[name] = next((path for path in paths if path not in others), paths[0])
    return found


def _keys(section: dict[str, Any], titles: Mapping[str, str]) -> str:
    required = section.get("required", ())
    rows = [
        (f"`{key}`", spell(entry, titles), _default(entry, required=key in required), entry["description"].strip())
        for key, entry in section["properties"].items()
    ]
    return table(("key", "type", "default", "meaning"), rows)


def _places(schema: dict[str, Any]) -> dict[str, list[str]]:
    """Return section -> the key paths at which it may stand, in the order of the file."""
    found: dict[str, list[str]] = {}
    waiting = [("", schema)]
    while waiting:
        path, section = waiting.pop(0)
        for key, entry in section["properties"].items():
            for name in dict.fromkeys(_walk(entry)):
                above, _, family = path.partition(" (")
                within = _NAMES.get(key, "")  # between a key and a section below it: a name, an index, or nothing
                within = f".{within}" if "additionalProperties" in entry else within if within[:1] == "[" else ""
                below = (f"{above}.{key}" if path else key) + within
                below += f" ({family}" if family else _family(schema["$defs"][name])
                if name not in found:
                    waiting.append((below, schema["$defs"][name]))
                found.setdefault(name, []).append(below)
    return found


def _family(section: dict[str, Any]) -> str:
    """Return what tells a member of the union of families from the first one, which has the plain title."""
    family = section["properties"].get("family", {}).get("const", "gpt")
    return "" if family == "gpt" else f" ({family})"


def _walk(entry: Any) -> Iterator[str]:
    """Yield the sections that an entry of the schema names."""
    if isinstance(entry, dict):
        if "$ref" in entry:
            yield entry["$ref"].removeprefix(_REF)
        for key, value in entry.items():
            if key not in ("default", "description"):
                yield from _walk(value)
    elif isinstance(entry, list):
        for value in entry:
            yield from _walk(value)


def spell(entry: dict[str, Any], titles: Mapping[str, str]) -> str:
    """Return a type of the schema in words. `titles` are the headings of the sections."""
    if "anyOf" in entry:
        return _spell_options(entry["anyOf"], titles)
    if "$ref" in entry:
        title = titles[entry["$ref"].removeprefix(_REF)]
        return title if title.startswith("`") else f"[{title}](#{anchor(title)})"
    if "const" in entry:
        return f"`{entry['const']}`"
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    match entry.get("type"):
        case "array":
            item = spell(entry["items"], titles)
            return f"list of {_PLURALS.get(item, item)}"
        case "object" if isinstance(entry.get("additionalProperties"), dict):
            return f"mapping of names to {spell(entry['additionalProperties'], titles)}"
        case "object":
            return "mapping"
        case "boolean":
            return "true or false"
        case "integer" | "number":
            return entry["type"] + _bounds(entry)
        case "string":
            return f"text matching `{entry['pattern']}`" if "pattern" in entry else "text"
        case _:
            return "any value"


def _spell_options(options: Sequence[dict[str, Any]], titles: Mapping[str, str]) -> str:
    """Return alternatives in words. Names and any text together are the names of a registry."""
    flat = list(_flat(options))
    any_text = {"type": "string"}
    if any_text not in flat or not any("enum" in option for option in flat):
        return " or ".join(dict.fromkeys(spell(option, titles) for option in flat))
    others = [spell(option, titles) for option in flat if option != any_text]
    return " or ".join(dict.fromkeys([*others, "a name that a plug-in registers"]))


def _flat(options: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for option in options:
        if "anyOf" in option:
            yield from _flat(option["anyOf"])
        elif option.get("type") != "null":
            yield option


def _bounds(entry: dict[str, Any]) -> str:
    rules = [f"{sign} {entry[key]:.3g}".replace("e+0", "e") for key, sign in _BOUNDS.items() if key in entry]
    return " " + ", ".join(rules) if rules else ""


def _default(entry: dict[str, Any], *, required: bool) -> str:
    if required:
        return "**required**"
    match entry.get("default"):
        case None:
            return "none"
        case bool(value):
            return f"`{str(value).lower()}`"
        case dict(value):
            return "its defaults" if value else "empty"
        case list(value):
            return f"`{value}`" if value else "empty"
        case value:
            return f"`{value}`"
