"""Match: from ordered name patterns to the role of each parameter. Pure: nothing is stored on the tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.recipe.patterns import spelled
from hpxfer.scaling.roles import ROLES

# Pairs of (pattern, role), of which the first that matches a name wins. `*` matches dots too: "*.experts.*.up.weight".
# A tensor that holds several matrices has their roles joined by `+`: "attn_q+attn_k+attn_v".
Roles = Mapping[str, str] | Iterable[tuple[str, str]]
JOIN = "+"
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
