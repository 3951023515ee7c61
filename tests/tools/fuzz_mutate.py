"""Mutations: sound files made odd. Each is a pure function of its input and of a random number generator."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

Mutation = Callable[[bytes, Random], bytes]

# Values that stand where another one should. Large ones are made when they are needed.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 1.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")),
    *(2**31, 2**63, -(2**63), 2**64, 10**18, 10**30, 10**400, "", " ", "x", "null", "~", "nan", "1e5", "0x10"),
    *("1:20:30", "../..", "/", "/dev/null", "~", "~root", ".", "*", "text:/**", "text:", "tokens:/dev/null"),
    *("builtin:", "%s", "{}"),
    *("a\nb", "a\tb", "\u202e", "\ud7ff", "\U0001f600", "é" * 50, "\x1b[31mred", "$(true)", "key: value", "- 1", "#"),
    *([], {}, [None], [[]], {"a": 1}, {"": None}, [1, 2, 3], [1, 1], ["x"], [-1], [0], [1e9], {1: 2}, {"width": [16]}),
)
TAGS = (
    *("!!bool", "!!timestamp", "!!int", "!!float", "!!null", "!!binary", "!!set", "!!omap", "!!str"),
    *("!!python/name:os",),
)
TEXTS: tuple[bytes, ...] = (
    *(b"\t", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\x85", b"\xc3\x28", b"\x1b[2J", b"---\n", b"...\n"),
    *(b"%YAML", b": ", b"- ", b"? ", b"&a ", b"*a", b"<<: *a\n", b"'", b'"', b"[", b"]", b"{", b"}", b"|\n", b">\n"),
    *(b"# ", b"!x ", b"1:20:30", b"0x" + b"f" * 5000, b"9" * 5000, b"1e999999999", b".inf", b".nan", b"yes"),
    *(b"2026-01-01", b"@", b"`"),
)
_KEYS = (None, True, 0, -1.5, "", "x" * 50_000, "\x1b[31m", "<<", "a: b", 10**30)
# How often a mutation of values changes a number to another one that may be legal, so that it comes far.
_NUMBERS = 0.5
_MOST_PARSED = 100_000
# What PyYAML raises for text that is no YAML, for values that do not suit their tags, and e.g. for numbers too long.
_UNREADABLE = (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
SIZES = (100, 5_000, 50_000, 1_000_000)


def of_yaml(data: bytes, random: Random) -> bytes:
    """Return a YAML file with one to three mutations: of its values, or of its text."""
    return _several(data, random, ((_yaml_values, 6), (_tagged, 1), (_duplicated, 1), (of_text, 3), (of_bytes, 1)))


def of_json(data: bytes, random: Random) -> bytes:
    """Return a JSON file with one to three mutations."""
    return _several(data, random, ((_json_values, 6), (of_text, 3), (of_bytes, 1)))


def of_text(data: bytes, random: Random) -> bytes:
    """Return a text with something put in, taken out, cut off, repeated or encoded otherwise."""
    at = random.randrange(len(data) + 1)
    lines = data.split(b"\n")
    line = random.randrange(len(lines))
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: data[:at] + random.choice(TEXTS) + data[at:],
        lambda: data[:at] + random.choice(TEXTS) + data[at:],
        lambda: data[:at],
        lambda: b"\n".join(lines[:line] + lines[line + 1 :]),
        lambda: b"\n".join([*lines[:line], b" " * random.randrange(1, 9) + lines[line], *lines[line + 1 :]]),
        lambda: b"\n".join([*lines[:line], lines[line].lstrip(), *lines[line + 1 :]]),
        lambda: data[:at] + bytes([random.choice(b"x[{ &*-")]) * random.choice(SIZES) + data[at:],
        lambda: data.decode(errors="replace").encode(random.choice(("utf-16", "utf-8-sig", "utf-32"))),
        lambda: data.replace(b"\n", random.choice((b"\r\n", b"\r", b"\n\n", b" "))),
        lambda: data + data,
        lambda: b"".join(_bomb(random)) + data,
    )
    return random.choice(ways)()


def of_bytes(data: bytes, random: Random) -> bytes:
    """Return bytes that are cut, flipped, overwritten, repeated, random, or none."""
    if not data:
        return random.randbytes(100)
    at, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    flipped = bytearray(data)
    for _ in range(random.choice((1, 1, 3, 50))):
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: bytes(flipped),
        lambda: bytes(flipped),
        lambda: data[:at],
        lambda: data[:at] + data[end:],
        lambda: data[:at] + random.randbytes(end - at) + data[end:],
        lambda: data[:at] + bytes(end - at) + data[end:],
        lambda: data + data[at:end],
        lambda: random.randbytes(random.choice((1, 100, 5000))),
        lambda: b"",
    )
    return random.choice(ways)()


def odd(random: Random) -> Any:
    """Return a value that hardly anybody means."""
    if random.random() < 0.08:
        size = random.choice(SIZES)
        return random.choice(("x" * size, 10 ** min(size, 5000), list(range(min(size, 5000))), _deep(min(size, 200))))
    return random.choice(ODD)


def _several(data: bytes, random: Random, ways: tuple[tuple[Mutation, int], ...]) -> bytes:
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        (way,) = random.choices([way for way, _ in ways], [weight for _, weight in ways])
        data = way(data, random)
    return data


def _yaml_values(data: bytes, random: Random) -> bytes:
    if b"*" in data or len(data) > _MOST_PARSED:  # aliases may unfold to very many nodes
        return of_text(data, random)
    try:
        tree = _changed(yaml.safe_load(data), random)
        return yaml.safe_dump(tree, sort_keys=False, allow_unicode=random.random() < 0.5).encode()
    except _UNREADABLE:
        return of_text(data, random)


def _json_values(data: bytes, random: Random) -> bytes:
    if len(data) > _MOST_PARSED:
        return of_text(data, random)
    try:
        return json.dumps(_changed(json.loads(data), random)).encode()
    except (ValueError, TypeError, RecursionError):
        return of_text(data, random)


def _changed(tree: Any, random: Random) -> Any:
    """Return the tree with one node changed. It changes the tree."""
    places = list(_places(tree))
    if not places:
        return odd(random)
    numbers = [(holder, key) for holder, key in places if _is_number(holder[key])]
    if numbers and random.random() < _NUMBERS:
        holder, key = random.choice(numbers)
        holder[key] = _near(holder[key], random)
        return tree
    holder, key = random.choice(places)
    value = holder[key]
    match random.randrange(10):
        case 0 | 1 | 2:
            holder[key] = odd(random)
        case 3:
            holder[key] = _scaled(value, random)
        case 4:
            holder[key] = random.choice(([value], {"values": value}))
        case 5:
            holder[key] = str(value)
        case 6:
            del holder[key]
        case 7 | 8:
            _renamed(holder, key, random)
        case _:  # the value of another node
            other, name = random.choice(places)
            holder[key] = json.loads(json.dumps(other[name], default=str))
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Return (dictionary or list, key) of every node below the root."""
    keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [(tree, key) for key in keys] + [place for key in keys for place in _places(tree[key])]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _near(value: Any, random: Random) -> Any:
    """Return another number of the same type, which may well be legal."""
    if isinstance(value, float):
        return value * random.choice((0.5, 2.0, 10.0, 1e3, 1e-6))
    near = (value + 1, value - 1, value * 2, value * 3, value * 10, value // 2, value * 1000, 0, 1, 10**6)
    return random.choice(near)


def _scaled(value: Any, random: Random) -> Any:
    if not _is_number(value):
        return value * 1000 if isinstance(value, str | list) else value
    return value * random.choice((-1, 0, 2, 3, 10, 1e3, 1000, 10**6, 10**9, 1e-9, 0.5))


def _renamed(holder: Any, key: Any, random: Random) -> None:
    if isinstance(holder, dict):
        name = str(key)
        holder[random.choice((name.upper(), name[:-1], name + "s", name + " ", *_KEYS))] = holder.pop(key)
    else:
        holder.insert(key, holder[key])


def _deep(depth: int) -> Any:
    out: Any = 1
    for _ in range(depth):
        out = [out]
    return out


def _tagged(data: bytes, random: Random) -> bytes:
    """Put a tag before the value of a line."""
    lines = data.split(b"\n")
    with_value = [index for index, line in enumerate(lines) if b": " in line] or [0]
    index = random.choice(with_value)
    name, colon, value = lines[index].partition(b": ")
    lines[index] = name + colon + random.choice(TAGS).encode() + b" " + value
    return b"\n".join(lines)


def _duplicated(data: bytes, random: Random) -> bytes:
    """Repeat a line at the same place or at the end."""
    lines = data.split(b"\n")
    line = random.choice(lines)
    lines.insert(random.choice((lines.index(line), len(lines))), line)
    return b"\n".join(lines)


def _bomb(random: Random) -> list[bytes]:
    """Return the lines of aliases of aliases, which unfold to very many."""
    width, height = random.choice(((2, 40), (9, 9), (1000, 3)))
    lines = [b"b0: &b0 [x]\n"]
    lines += [b"b%d: &b%d [%s]\n" % (k, k, b", ".join([b"*b%d" % (k - 1)] * width)) for k in range(1, height)]
    return lines
