"""Placeholders: the names in braces inside the elements of a command, and what stands in their place. Pure.

A literal brace is doubled, as in Python: `{{` and `}}`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from hpxfer.errors import HpxferError, nearest, shown

PLAIN = (
    "config_json",
    "gpus",
    "nodes",
    "node_rank",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_is_host",
    "run_dir",
    "seed",
    "steps",
)
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def check(
    argv: Sequence[str],
    shape_keys: Collection[str],
    hp_keys: Collection[str],
    arg_keys: Collection[str] = (),
    where: str = "trainer.command",
) -> None:
    """Raise HpxferError, with a line per mistake, unless a command can be filled for each trial.

    Legal are `PLAIN`, and `hp.NAME`, `shape.NAME` and `arg.NAME` of the names given.
    """
    if isinstance(argv, str) or not argv:
        raise HpxferError(f"{where}: must be a list of at least one text, got {shown(argv)}; write [python, train.py]")
    legal = [
        *PLAIN,
        *(f"shape.{key}" for key in shape_keys),
        *(f"hp.{key}" for key in hp_keys),
        *(f"arg.{key}" for key in arg_keys),
    ]
    broken = [
        f"{where}[{index}]: {problem}" for index, element in enumerate(argv) for problem in _problems(element, legal)
    ]
    if not argv[0]:
        broken.append(f"{where}[0]: must name a program, got an empty text")
    if broken:
        raise HpxferError("\n".join(broken))


def fill(argv: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the command with values in place of names, e.g. {"hp.lr": 0.01, "gpus": 2}.

    A number is spelled so that it reads back equal. Raises HpxferError for an unknown name, with the nearest one.
    """
    return tuple(_filled(element, values, f"command[{index}]") for index, element in enumerate(argv))


def _filled(element: str, values: Mapping[str, object], where: str) -> str:
    def value(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        name = match[1]
        if name is None or name not in values:
            raise HpxferError("\n".join(f"{where}: {problem}" for problem in _problems(element, list(values))))
        return _spelled(values[name])

    return _TOKEN.sub(value, element)


def _spelled(value: object) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)


def _problems(element: object, legal: Sequence[str]) -> Iterator[str]:
    if not isinstance(element, str):
        yield f"must be text, got {shown(element)}; quote it"
        return
    if "\0" in element:
        yield "must not hold a zero byte"
    for match in _TOKEN.finditer(element):
        if match[0] in ("{{", "}}"):
            continue
        if match[1] is None:
            yield f"a literal brace must be doubled, got {shown(element)}; write {match[0] * 2}"
        elif match[1] not in legal:
            yield f"must use known names in braces, got {shown('{' + match[1] + '}')}; {nearest(match[1], legal)}"
