"""Patterns: from names in groups to patterns, each of which matches names of one group alone. Pure.

A template is a name in which `#` stands for any whole number: `layers.#.wq.weight`. A template that two groups would
share, such as that of a layer which differs from the others, is not made: those names stand by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from hpxfer.errors import HpxferError


def templates(groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return for each group of names the templates that match all of its names and none of another group."""
    owners: dict[str, set[int]] = {}
    for at, names in enumerate(groups):
        for name in names:
            owners.setdefault(template_of(name), set()).add(at)
    return [
        list(dict.fromkeys(made if len(owners[made := template_of(name)]) == 1 else name for name in names))
        for names in groups
    ]


def template_of(name: str) -> str:
    """Return the name with `#` for each part that is a number, and for a number at the end, as in `weight12`."""
    parts = ["#" if part.isdecimal() else part for part in name.split(".")]
    return re.sub(r"[0-9]+$", "#", ".".join(parts))


def globs(groups: Sequence[Sequence[str]], lead: str = "") -> list[list[str]]:
    """Return for each group its globs, in which `*` matches dots too. `lead` stands before each, e.g. `*`.

    Raises HpxferError if a glob matches a name of another group.
    """
    made = [[lead + one.replace("#", "*") for one in group] for group in templates(groups)]
    owner = {name: at for at, names in enumerate(groups) for name in names}
    for at, patterns in enumerate(made):
        for pattern in patterns:
            for name in owner:
                if owner[name] != at and fnmatchcase(name, pattern):
                    raise HpxferError(
                        f"names: a glob must match names with equal numbers alone, got {pattern!r} for {name}, which "
                        "has others; rename the parameter, or use --to torch, which goes by whole names"
                    )
    return made
