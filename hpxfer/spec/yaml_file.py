"""YAML files: read safely, with the line of every key, so that an error can name the line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpxfer.errors import HpxferError

KeyPath = tuple[str | int, ...]


MAX_VALUES = 200_000


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, plus YAML 1.2 floats: in YAML 1.1 `1e-12` is a string."""


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes a string that the loader would read as a float, e.g. the digest `12e5`."""


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
        list("-+0123456789."),
    )


@dataclass(frozen=True)
class YamlFile:
    """The data of a YAML document, and the line (from 1) of every key path in it."""

    name: str
    data: Any
    lines: dict[KeyPath, int]

    def where(self, path: KeyPath) -> str:
        """Return `file:line: key.path` with the line of the deepest key on `path` that the file has."""
        key = f": {spell(path)}" if path else ""
        for cut in range(len(path), -1, -1):
            if path[:cut] in self.lines:
                return f"{self.name}:{self.lines[path[:cut]]}{key}"
        return self.name + key


def spell(path: KeyPath) -> str:
    """Return a key path as a reader writes it, e.g. `axes.width[2]`."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else (f".{part}" if out else str(part))
    return out


def read_yaml(path: str | Path) -> YamlFile:
    """Return the document of a YAML file. Raise HpxferError if the file cannot be read or is not YAML."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except IsADirectoryError:
        raise HpxferError(
            f"{path}: must be a YAML file, got a folder; name a file, e.g. {Path(path, 'sweep.yaml')}"
        ) from None
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise HpxferError(f"{path}: must be UTF-8 text: {error.reason} at byte {error.start}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> YamlFile:
    """Return the document in `text`. `name` stands for the file in messages."""
    lines: dict[KeyPath, int] = {}
    try:
        data = _read(_Loader(text), lines, name)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise HpxferError(f"{name}:{line}: not valid YAML: unprintable character {error.character:#x}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        problem = getattr(error, "problem", None) or str(error)
        raise HpxferError(f"{where}: not valid YAML: {problem}") from None
    except HpxferError:
        raise
    except (ValueError, RecursionError) as error:  # e.g. a date that does not exist; an alias that holds itself
        raise HpxferError(f"{name}: not valid YAML: {error}") from None
    return YamlFile(name=name, data=data, lines=lines)


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
    if len(lines) > MAX_VALUES:
        raise HpxferError(f"{name}: must hold at most {MAX_VALUES} values, got more; are aliases nested?")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
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
