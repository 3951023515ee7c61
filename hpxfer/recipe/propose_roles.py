"""Propose roles: a guess of the role of each tensor of a torch model, by its architecture or by names alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.host import aligned
from hpxfer.recipe.assign import BALANCED, names_of_each
from hpxfer.recipe.known_models import known_model, why_refused
from hpxfer.recipe.match import Roles, pairs_of, pairs_of_roles, spelled
from hpxfer.recipe.modules import plain_names
from hpxfer.recipe.places import ROUTER_BIASES
from hpxfer.recipe.roles_by_place import Proposal, Sizes, proposals

if TYPE_CHECKING:
    import torch

HEADER = ("pattern", "role", "tensors", "for example", "size")


@dataclass(frozen=True, kw_only=True)
class Match:
    """A pattern with its role, and the tensors that it is the first to match."""

    pattern: str
    role: str
    names: tuple[str, ...]
    size: tuple[int, ...]  # of the first tensor
    guess: str | None = None  # why the role is a guess, if it is not the common meaning of the name


@dataclass(frozen=True, kw_only=True)
class ProposedRoles:
    """Proposed roles of a model. Iterating gives (pattern, role), so that a proposal is accepted wherever `roles` are.

    `str()` shows which pattern matches which tensors. A recipe refuses a model with names in `unmatched`.
    """

    kind: str | None  # config.model_type of a known architecture
    matches: tuple[Match, ...]
    unmatched: tuple[str, ...]

    @property
    def guesses(self) -> tuple[str, ...]:
        """What was guessed, one sentence per pattern: a role that follows from no common meaning of the name."""
        return tuple(f"{one.names[0]} is taken for {one.role} {one.guess}" for one in self.matches if one.guess)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((match.pattern, match.role) for match in self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def __str__(self) -> str:
        how = f"as a {self.kind} of transformers" if self.kind else "by names alone: check them"
        cells = [
            (match.pattern, match.role, str(len(match.names)), match.names[0], "x".join(map(str, match.size)))
            for match in self.matches
        ]
        lines = [f"roles, {how}", *(f"  {line}" for line in aligned([HEADER, *cells]))]
        lines += self.guesses
        if self.unmatched:
            lines.append("without a role; give one in `extra`, e.g. extra={'*.name.weight': 'dense_in'}:")
            lines += [f"  {name}" for name in spelled(self.unmatched)]
        return "\n".join(lines)


def roles(model: torch.nn.Module, extra: Roles | None = None) -> ProposedRoles:
    """Return ordered name patterns with a role for the parameters of a model. Those of `extra` come first.

    A name counts in its place: inside attention, an FFN, experts, a block, or outside the blocks. What a name leaves
    open has no role. Models of transformers whose `config.model_type` recipes know, such as mixtral, were checked; of
    all others the proposal says that it goes by names alone. A shared tensor counts once. Raises HpxferError if `extra`
    is no mapping and no pairs, or has a pattern that matches nothing. Its roles are checked where they are used.

    >>> print(hpxfer.roles(torch.nn.ModuleDict({"lm_head": torch.nn.Linear(8, 32, bias=False)})))
    roles, by names alone: check them
      pattern         role     tensors  for example     size
      lm_head.weight  readout  1        lm_head.weight  32x8
    """
    plain = plain_names(model)
    parameters = {plain(name): tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    sizes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    buffers = {plain(name): tuple(tensor.shape) for name, tensor in model.named_buffers()}
    balanced = {name: size for name, size in buffers.items() if name.rpartition(".")[2] in ROUTER_BIASES}
    row = known_model(model)
    given = pairs_of(extra or ())
    _require_matches(given, [*sizes, *buffers], "roles: extra")
    first = (*given, *(row.roles if row else ()))
    found = proposals({**sizes, **balanced})
    role_of = {name: one.role for name, one in found.items() if _of_first(name, first) is None}
    others = [name for name in sizes if name not in role_of]
    matches, matched = [], set[str]()
    for pattern, role in dict.fromkeys((*first, *pairs_of_roles(role_of, others))):
        searched = sizes if role != BALANCED else {**sizes, **buffers}
        names = tuple(name for name in searched if name not in matched and fnmatchcase(name, pattern))
        matched |= set(names)
        guess = next((why for name in names if role_of.get(name) == role and (why := found[name].guess)), None)
        if names:
            matches.append(Match(pattern=pattern, role=role, names=names, size=searched[names[0]], guess=guess))
    # A recipe asks for the role of the first name of a shared tensor.
    without = tuple(first for first, *_ in names_of_each(parameters) if first not in matched)
    if without and (why := why_refused(model)):
        raise HpxferError(f"roles: each parameter must have a role, got none for {len(without)} of a {why}")
    return ProposedRoles(kind=row.name if row else None, matches=tuple(matches), unmatched=without)


def roles_of_names(sizes: Sizes, extra: Roles, known: Roles, where: str) -> dict[str, Proposal]:
    """Return name -> role for a list of names, with sizes as far as they are known.

    Patterns of `extra` come first, then those of `known`, which may match nothing. Names that leave their role open are
    not in it. Raises HpxferError, which names `where`, if a pattern of `extra` matches none.
    """
    given = pairs_of(extra)
    _require_matches(given, list(sizes), where)
    pairs = (*given, *pairs_of(known))
    chosen = {name: Proposal(role=role) for name in sizes if (role := _of_first(name, pairs)) is not None}
    return {**proposals(sizes), **chosen}


def _require_matches(pairs: Iterable[tuple[str, str]], names: Sequence[str], where: str) -> None:
    idle = [pattern for pattern, _ in pairs if not any(fnmatchcase(name, pattern) for name in names)]
    if idle:
        rule = "every pattern must match a parameter or buffer"
        raise HpxferError(f"{where}: {rule}, got no match for {', '.join(map(repr, idle))}; correct or remove")


def _of_first(name: str, pairs: Iterable[tuple[str, str]]) -> str | None:
    return next((role for pattern, role in pairs if fnmatchcase(name, pattern)), None)
