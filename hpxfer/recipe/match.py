"""Match: from ordered name patterns to the role of each parameter, and from names back to patterns. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.scaling.numbers import JOIN
from hpxfer.scaling.roles import ROLES

# Patterns: from names in groups to patterns, each of which matches names of one group alone. Pure.
#
# A template is a name in which `#` stands for any whole number: `layers.#.wq.weight`. A template that two groups would
# share, such as that of a layer which differs from the others, is not made: those names stand by themselves.

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


# Pairs of (pattern, role), of which the first that matches a name wins. `*` matches dots too: "*.experts.*.up.weight".
# A tensor that holds several matrices has their roles joined by `+`: "attn_q+attn_k+attn_v".
Roles = Mapping[str, str] | Iterable[tuple[str, str]]

# A matrix whose fan-in is not its role's carries the fan-in that it had at the base: "attn_q@128".
AT = "@"


def match_roles(
    parameters: Sequence[str], optional: Sequence[str], roles: Roles, refused: Mapping[str, str]
) -> dict[str, str]:
    """Return name -> role of each parameter, and of the `optional` names (buffers, aliases) that a pattern matches.

    `refused` maps a role that cannot be used to the reason. Raises HpxferError with one line per kind of fault, which
    names each parameter that no pattern matches, and each pattern that is not used.
    """
    pairs = pairs_of(roles)
    names = [*parameters, *optional]
    first = {name: hit for name in names if (hit := _first_match(name, pairs)) is not None}
    faults = [
        *_ambiguous(pairs),
        *_bad_roles(pairs, refused),
        *_unmatched([name for name in parameters if name not in first]),
        *_unused(pairs, names, set(first.values())),
    ]
    if faults:
        raise HpxferError("\n".join(f"roles: {fault}" for fault in faults))
    return {name: pairs[hit][1] for name, hit in first.items()}


def pairs_of(given: Roles, where: str = "roles", what: str = "role") -> tuple[tuple[str, str], ...]:
    """Return pairs of (pattern, `what`) in order. Raise HpxferError, which names `where`, if `given` holds no pairs."""
    rule = f"{where}: must be a mapping of name pattern to {what}, or such pairs in order"
    if not isinstance(given, Iterable):
        raise HpxferError(f"{rule}, got {shown(given)}")
    pairs = tuple(given.items() if isinstance(given, Mapping) else given)
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise HpxferError(f"{rule}, got {shown(pair)}")
    return tuple((pattern, role) for pattern, role in pairs)


def _ambiguous(pairs: Sequence[tuple[str, str]]) -> Iterable[str]:
    for pattern in dict.fromkeys(pattern for pattern, _ in pairs):
        if len(found := {role: None for other, role in pairs if other == pattern}) > 1:
            yield f"{shown(pattern)}: a pattern must have one role, got {', '.join(found)}; keep the right one"


def _first_match(name: str, pairs: Sequence[tuple[str, str]]) -> int | None:
    return next((i for i, (pattern, _) in enumerate(pairs) if fnmatchcase(name, pattern)), None)


def _bad_roles(pairs: Sequence[tuple[str, str]], refused: Mapping[str, str]) -> Iterable[str]:
    for pattern, given in pairs:
        joined, at, fan_in = given.partition(AT)
        if at and not (fan_in.isdecimal() and int(fan_in)):
            rule = f"after {AT} must stand the fan-in at the base, e.g. attn_q@128"
            yield f"{shown(pattern)}: {given}: {rule}, got {shown(fan_in)}"
        for role in joined.split(JOIN):
            if at and ROLES.get(role, "matrix") != "matrix":
                yield f"{shown(pattern)}: {given}: only a matrix can carry its fan-in, got {role}"
            if role not in ROLES:
                yield f"{shown(pattern)}: unknown role {shown(role)}; {nearest(role, ROLES)}"
            elif role in refused:
                yield f"{shown(pattern)}: {role}: {refused[role]}"
            elif joined != role and ROLES[role] != "matrix":
                rule = "only matrices can share a tensor"
                yield f"{shown(pattern)}: {given}: {rule}, got {role}; give it a role of its own"


def _unmatched(names: Sequence[str]) -> Iterable[str]:
    if names:
        listed = ", ".join(spelled(names))
        yield f"every parameter must match a pattern, got none for {listed}; add patterns with their role"


def _unused(pairs: Sequence[tuple[str, str]], names: Sequence[str], used: set[int]) -> Iterable[str]:
    idle = [pattern for i, (pattern, _) in enumerate(pairs) if i not in used]
    hidden = [pattern for pattern in idle if any(fnmatchcase(name, pattern) for name in names)]
    dead = [pattern for pattern in idle if pattern not in hidden]
    if dead:
        yield f"every pattern must match a parameter or buffer, got no match for {_quoted(dead)}; correct or remove"
    if hidden:
        yield f"the first match wins, and earlier patterns match all names of {_quoted(hidden)}; move these up"


def _quoted(patterns: Sequence[str]) -> str:
    return ", ".join(map(repr, patterns))
