"""Patterns: from names in groups to patterns, each of which matches names of one group alone. Pure.

A template is a name in which `#` stands for any whole number: `layers.#.wq.weight`. A template that two groups would
share, such as that of a layer which differs from the others, is not made: those names stand by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from hpxfer.errors import HpxferError

FEW = 10  # names that a message spells one by one


def templates(groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return for each group of names the templates that match all of its names and none of another group."""
    owners: dict[str, set[int]] = {}
    for at, names in enumerate(groups):
        for name in names:
            for form in forms(name):
                owners.setdefault(form, set()).add(at)
    return [
        list(dict.fromkeys(next(form for form in forms(name) if len(owners[form]) == 1) for name in names))
        for names in groups
    ]


def forms(name: str) -> list[str]:
    """Return the templates of a name from the widest to the name itself.

    The widest has `#` for each part that is a number and for a number at the end, as in `weight12`. The next has it for
    parts alone, so that `w1` and `w2` stay apart.
    """
    parts = ".".join("#" if part.isdecimal() else part for part in name.split("."))
    return [re.sub(r"[0-9]+$", "#", parts), parts, name]


def globs(groups: Sequence[Sequence[str]], lead: str = "") -> list[list[str]]:
    """Return for each group its globs, in which `*` matches dots too. `lead` stands before each, e.g. `*`.

    Each name matches one glob, and each glob a name. Raises HpxferError if a glob matches a name of another group.
    """
    owner = {name: at for at, names in enumerate(groups) for name in names}
    out: list[list[str]] = []
    for at, of_group in enumerate(templates(groups)):
        left, kept = set(groups[at]), []
        for pattern in (lead + one.replace("#", "*") for one in of_group):
            found = {name for name in owner if fnmatchcase(name, pattern)}
            for name in found:
                if owner[name] != at:
                    raise HpxferError(
                        f"names: a glob must match names with equal numbers alone, got {pattern!r} for {name}, which "
                        "has others; rename the parameter, or use --to torch, which goes by whole names"
                    )
            # A glob whose `*` crosses dots may match names of an earlier one too.
            kept += [pattern] if found <= left else sorted(lead + name for name in found & left)
            left -= found
        out.append(kept)
    return out


def pairs_of_roles(role_of: Mapping[str, str], others: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return pairs of (glob, role), few for many names, that match each name with its role and none of `others`.

    Where `*` would cross a dot into a name of another role, the names stand by themselves.
    """
    groups: dict[str | None, list[str]] = {}
    for name in [*role_of, *others]:
        groups.setdefault(role_of.get(name), []).append(name)
    # Names that differ in whole numbers alone are matched alike.
    alike = {forms(name)[1]: role for role, names in groups.items() for name in names}
    example = {forms(name)[1]: name for names in groups.values() for name in names}
    out: list[tuple[str, str]] = []
    for (role, names), of_group in zip(groups.items(), templates(list(groups.values())), strict=True):
        if role is None:
            continue
        covered = set[str]()
        for form in of_group:
            pattern = form.replace("#", "*")
            crosses = any(fnmatchcase(example[other], pattern) for other, owner in alike.items() if owner != role)
            found = [name for name in names if form in forms(name) and name not in covered]
            covered |= set(found)
            out += [(name, role) for name in found] if crosses else [(pattern, role)]
    return out


def spelled(names: Sequence[str]) -> list[str]:
    """Return names for a message. Of more than a few, those that differ in whole numbers alone are one glob."""
    if len(names) <= FEW:
        return list(names)
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(forms(name)[1], []).append(name)
    return [of[0] if len(of) == 1 else form.replace("#", "*") for form, of in alike.items()]


def one_per_pattern(faults: Iterable[tuple[str, str]]) -> list[str]:
    """Return the texts of (name, text), where texts that differ in the whole numbers of their name alone are one."""
    alike: dict[str, list[str]] = {}
    for name, text in faults:
        alike.setdefault(text.replace(name, forms(name)[1].replace("#", "*")), []).append(text)
    return [of[0] if len(of) == 1 else f"{text} ({len(of)} tensors)" for text, of in alike.items()]
