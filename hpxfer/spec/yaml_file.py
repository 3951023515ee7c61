"""YAML files: read safely, with the line of every key, so that an error can name the line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from hpxfer.errors import MAX_SHOWN, HpxferError, cut, shown
from hpxfer.host import read_text

KeyPath = tuple[str | int, ...]

MAX_BYTES = 2 * 2**20  # of a file that people write. A list of 100,000 seeds takes less than half
MAX_VALUES = 120_000
MAX_NESTED = 100
MAX_DIGITS = 250  # of a whole number. A float is as large as 309 digits, in base 16 as 256

_TAG = "tag:yaml.org,2002:"
# The scalars of YAML 1.2's core schema: tag -> what a message calls it, how it is spelled, how that may start. YAML 1.1
# would read `1:20:30` as 4830, `010` as 8, `no` as false, and `1e-12` as text. Beyond the schema, `_` may stand between
# the digits of a decimal whole number, as in Python.
_SCALARS = {
    "null": ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    "bool": ("true or false", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": ("a whole number", r"[-+]?[0-9]+(_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        "a number",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the values of YAML 1.2 and no others. It stops at a document that is too large."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - none of YAML 1.1; those of this class are added below
    yaml_constructors = {  # noqa: RUF012 - as above
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (_TAG + "seq", _TAG + "map")
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._num_nodes = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._num_nodes, self._depth = self._num_nodes + 1, self._depth + 1
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        _check_size(event.start_mark, self._num_nodes, self._depth)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct(self, node: Any) -> Any:
        """Return the value of a scalar, which a tag may have named."""
        tag = node.tag.removeprefix(_TAG)
        if tag not in (*_SCALARS, "str"):
            raise ConstructorError(None, None, f"unknown tag {tag}", node.start_mark)
        text = str(self.construct_scalar(node))
        if tag == "str":
            if re.search(r"[\ud800-\udfff]", text):
                raise ConstructorError(None, None, "half of a character", node.start_mark)
            return text
        if not re.fullmatch(_SCALARS[tag][1], text) or (tag == "int" and len(text) > MAX_DIGITS):
            limit = f" of at most {MAX_DIGITS} digits" if tag == "int" else ""
            raise ConstructorError(None, None, f"expected {_SCALARS[tag][0]}{limit}", node.start_mark)
        match tag:
            case "int":
                return int(text.replace("_", ""), {"0o": 8, "0x": 16}.get(text[:2], 10))
            case "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
            case _:
                return text.lower() == "true" if tag == "bool" else None


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes each string that a reader of YAML 1.1 or 1.2 would take for something else."""


for _tag, (_, _spelled, _starts) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _tag, re.compile(rf"^(?:{_spelled})$"), list(_starts))
for _name in (None, *(_TAG + _tag for _tag in (*_SCALARS, "str"))):
    _Loader.add_constructor(_name, _Loader.construct)
_Loader.add_implicit_resolver(_TAG + "merge", re.compile("^<<$"), ["<"])


@dataclass(frozen=True)
class YamlFile:
    """The data of a YAML document, and the line (from 1) of every key path in it.

    The values at the `overridden` paths, and below them, come from the command line, or were taken out there. Those at
    the `filled` paths come from the recipe that a sweep starts from: key path -> what it gives there, in words.
    """

    name: str
    data: Any
    lines: dict[KeyPath, int]
    overridden: tuple[KeyPath, ...] = ()
    filled: Mapping[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """Return `file:line: key.path` with the line of the deepest key on `path` that the file has.

        Where options of the command line changed the key, or something in its section, they are named.
        """
        key = f": {spell(path)}" if path else ""
        if any(path[: len(given)] == given for given in self.filled):
            key += " (in the recipe)"
        inside = [given for given in self.overridden if path and given[: len(path)] == path]
        is_set = any(path[: len(given)] == given for given in self.overridden)
        if is_set or (inside and path not in self.lines):
            return f"--set{key}"
        key += f" (with --set {', '.join(map(spell, inside))})" if inside else ""
        known = [path[:end] for end in range(len(path), -1, -1) if path[:end] in self.lines]
        return f"{self.name}:{self.lines[known[0]]}{key}" if known else self.name + key


def spell(path: KeyPath) -> str:
    """Return a key path as a reader writes it, e.g. `axes.width[2]`."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else (f".{part}" if out else str(part))
    return cut(out, 2 * MAX_SHOWN)


def key_path(text: str) -> KeyPath:
    """Return the key path that `spell` wrote. No key of it has a dot or a bracket."""
    return tuple(int(index) if index else key for key, index in re.findall(r"([^.\[\]]+)(?![^\[]*\])|\[(\d+)\]", text))


def read_yaml(path: str | Path) -> YamlFile:
    """Return the document of a YAML file. Raise HpxferError if the file cannot be read or is not YAML."""
    try:
        return parse_yaml(read_text(path, MAX_BYTES), str(path))
    except OSError as error:
        raise HpxferError(f"{cut(str(path), 240)}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise HpxferError(f"{path}: must be UTF-8 text: {error.reason} at byte {error.start}") from None


def parse_yaml(text: str, name: str) -> YamlFile:
    """Return the document in `text`, data None if it is empty. `name` stands for the file in messages."""
    lines: dict[KeyPath, int] = {}
    loader = None
    try:
        loader = _Loader(text)
        if (node := loader.get_single_node()) is not None:
            _walk(node, (), lines)
        data = None if node is None else loader.construct_document(node)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise HpxferError(f"{name}:{line}: not valid YAML: unprintable character {error.character:#x}") from None
    except yaml.MarkedYAMLError as error:
        raise HpxferError(_not_yaml(error, text.splitlines(), name)) from None
    except (ValueError, OverflowError):  # of an escape such as "\UFFFFFFFF", which is no character
        line = 1 if loader is None else loader.line + 1
        raise HpxferError(f"{name}:{line}: not valid YAML: a number or an escape is too large") from None
    return YamlFile(name=name, data=data, lines=lines)


def _not_yaml(error: Any, lines: list[str], name: str) -> str:
    """Return the parser's words, with the line where it gave up and that of what it was reading."""
    mark, began = error.problem_mark, error.context_mark
    got = shown(lines[mark.line]) if mark.line < len(lines) else "the end of the file"
    inside = "" if began is None else f"; {cut(error.context)} that begins on line {began.line + 1}"
    return f"{name}:{mark.line + 1}: not valid YAML: {cut(error.problem)}, got {got}{inside}"


def write_yaml(data: Any, *, short: bool = False) -> str:
    """Return YAML that `parse_yaml` reads back as `data`, keys in the order given; if `short`, lists on one line."""
    # ASCII with escapes, because PyYAML writes a next-line character (U+0085) bare and reads it back as a space.
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=None if short else False, width=118)


def _walk(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    """Fill in the line of every key path below a node."""
    lines.setdefault(path, node.start_mark.line + 1)
    _check_size(node.start_mark, len(lines), len(path))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value))
            if inner in lines:
                rule = f"{spell(inner)}: the key stands twice, first on line {lines[inner]}"
                raise ConstructorError(None, None, rule, key.start_mark)
            lines[inner] = key.start_mark.line + 1
            _walk(value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, index), lines)


def _check_size(mark: Any, num_values: int, depth: int) -> None:
    """Raise ConstructorError if a document holds so much that it would take minutes to read."""
    if num_values > MAX_VALUES:
        raise ConstructorError(None, None, f"more than {MAX_VALUES} values (are aliases nested?)", mark)
    if depth > MAX_NESTED:
        raise ConstructorError(None, None, f"more than {MAX_NESTED} levels (does an alias hold itself?)", mark)
