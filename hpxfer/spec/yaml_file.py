"""YAML files: read safely, with the line of every key, so that an error can name the line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpxfer.errors import MAX_SHOWN, HpxferError, cut, shown
from hpxfer.host.files import read_text

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
    """PyYAML's safe loader with the scalars of YAML 1.2. It stops at a document that is too large."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - none of YAML 1.1; those of this class are added below

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self._name, self._num_nodes, self._depth = name, 0, 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._num_nodes, self._depth = self._num_nodes + 1, self._depth + 1
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        _check_size(f"{self._name}:{event.start_mark.line + 1}", self._num_nodes, self._depth)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes each string that a reader of YAML 1.1 or 1.2 would take for something else."""


def _whole_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


for _tag, (_, _spelled, _starts) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _tag, re.compile(rf"^(?:{_spelled})$"), list(_starts))
_Loader.add_implicit_resolver(_TAG + "merge", re.compile("^<<$"), ["<"])
_Loader.add_constructor(_TAG + "int", _whole_number)


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
        if any(path[: len(given)] == given for given in self.overridden):
            return f"--set{key}"
        inside = [given for given in self.overridden if path and given[: len(path)] == path]
        if inside and path not in self.lines:
            return f"--set{key}"
        key += f" (with --set {', '.join(map(spell, inside))})" if inside else ""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return f"{self.name}:{self.lines[path[:end]]}{key}"
        return self.name + key


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
        text = read_text(path, MAX_BYTES)
    except OSError as error:
        raise HpxferError(f"{cut(str(path), 240)}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise HpxferError(f"{path}: must be UTF-8 text: {error.reason} at byte {error.start}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> YamlFile:
    """Return the document in `text`. `name` stands for the file in messages."""
    lines: dict[KeyPath, int] = {}
    try:
        loader = _Loader(text, name)
        data = _read(loader, lines, name)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise HpxferError(f"{name}:{line}: not valid YAML: unprintable character {error.character:#x}") from None
    except yaml.YAMLError as error:
        raise HpxferError(_not_yaml(error, text, name)) from None
    except HpxferError:
        raise
    except (ValueError, OverflowError):  # e.g. of an escape such as "\UFFFFFFFF", which is no character
        raise HpxferError(f"{name}:{loader.line + 1}: not valid YAML: a number or an escape is too large") from None
    return YamlFile(name=name, data=data, lines=lines)


def _not_yaml(error: Any, text: str, name: str) -> str:
    """Return the parser's words, with the line where it gave up and that of what it was reading."""
    mark, began, lines = error.problem_mark, error.context_mark, text.splitlines()
    got = shown(lines[mark.line]) if mark.line < len(lines) else "the end of the file"
    inside = "" if began is None else f"; {cut(error.context)} that begins on line {began.line + 1}"
    return f"{name}:{mark.line + 1}: not valid YAML: {cut(error.problem)}, got {got}{inside}"


def write_yaml(data: Any) -> str:
    """Return YAML that `parse_yaml` reads back as `data`, keys in the order given."""
    # ASCII with escapes, because PyYAML writes a next-line character (U+0085) bare and reads it back as a space.
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False)


def _read(loader: _Loader, lines: dict[KeyPath, int], name: str) -> Any:
    """Return the data of the loader's document, or None if there is none, and fill in `lines`."""
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _walk(node, (), lines, name)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _walk(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], name: str) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    _check_size(f"{name}:{node.start_mark.line + 1}", len(lines), len(path))
    _check_tag(node, path, name)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _TAG + "merge":
                _check_tag(key, path, name)
            inner = (*path, str(key.value))
            if inner in lines:
                raise HpxferError(
                    f"{name}:{key.start_mark.line + 1}: {spell(inner)}: the key stands twice, first on line "
                    f"{lines[inner]}; keep one"
                )
            lines[inner] = key.start_mark.line + 1
            _walk(value, inner, lines, name)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, index), lines, name)


def _check_size(where: str, num_values: int, depth: int) -> None:
    """Raise HpxferError if a document holds so much that it would take minutes to read."""
    if num_values > MAX_VALUES:
        raise HpxferError(f"{where}: must hold at most {MAX_VALUES} values, got more; are aliases nested?")
    if depth > MAX_NESTED:
        raise HpxferError(f"{where}: must be nested at most {MAX_NESTED} deep, got more; does an alias hold itself?")


def _check_tag(node: yaml.Node, path: KeyPath, name: str) -> None:
    """Raise HpxferError unless the tag of a node is one that files have, and a scalar is spelled as its tag says."""
    where = f"{name}:{node.start_mark.line + 1}: {spell(path)}".removesuffix(": ")
    tag = node.tag.removeprefix(_TAG)
    if tag not in (*_SCALARS, "str", "seq", "map"):
        known = node.tag.startswith(_TAG)
        raise HpxferError(f"{where}: unknown tag {cut('!!' + tag if known else tag)}; take it out, or quote the value")
    if not isinstance(node, yaml.ScalarNode):
        return
    if re.search(r"[\ud800-\udfff]", node.value):
        raise HpxferError(f"{where}: must be Unicode text, got half of a character in {shown(node.value)}")
    if tag not in _SCALARS:
        return
    noun, spelled, _ = _SCALARS[tag]
    if not re.fullmatch(spelled, node.value):
        raise HpxferError(f"{where}: must be {noun} after !!{tag}, got {shown(node.value)}; take the tag out")
    if tag == "int" and len(node.value) > MAX_DIGITS:
        raise HpxferError(f"{where}: must have at most {MAX_DIGITS} digits, got {cut(node.value)}")
