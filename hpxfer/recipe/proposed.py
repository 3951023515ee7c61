"""Proposed: a guess of what each tensor of a torch model is, by its kind of model or, failing that, by names alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hpxfer.recipe.apply import names_of_each
from hpxfer.recipe.describe import aligned
from hpxfer.recipe.known_models import COMMON, FFNS, HEADS, IN_FFN, NUMBERED, ROLES_OF, Pairs
from hpxfer.recipe.match import JOIN, Roles, pairs_of
from hpxfer.recipe.names import plain_names, unwrapped

if TYPE_CHECKING:
    import torch

HEADER = ("pattern", "role", "tensors", "for example", "size")
Sizes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Match:
    """A pattern, its role, and the tensors that it is the first to match."""

    pattern: str
    role: str
    names: tuple[str, ...]
    size: tuple[int, ...]  # of the first one


@dataclass(frozen=True, kw_only=True)
class ProposedRoles:
    """Proposed roles of a model: iterates as (pattern, role), so that it can be given wherever `roles` is asked for.

    `str()` shows what matched what. Nothing is hidden: a recipe refuses a model with names in `unmatched`.
    """

    kind: str | None  # config.model_type, if its names are known
    matches: tuple[Match, ...]
    unmatched: tuple[str, ...]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((one.pattern, one.role) for one in self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def __str__(self) -> str:
        how = f"as a {self.kind} of transformers" if self.kind else "by names alone: check them"
        cells = [
            (one.pattern, one.role, str(len(one.names)), one.names[0], "x".join(map(str, one.size)))
            for one in self.matches
        ]
        lines = [f"roles, {how}", *aligned([HEADER, *cells])]
        if self.unmatched:
            lines.append("no role; give one in `extra`, e.g. extra={'*.name.weight': 'dense_in'}:")
            lines += [f"  {name}" for name in self.unmatched]
        return "\n".join(lines)


def roles(model: torch.nn.Module, extra: Roles | None = None) -> ProposedRoles:
    """Return ordered name patterns with a role for the parameters of a model; `extra` ones come first.

    Models of transformers are known by `config.model_type`: gpt2, llama, mixtral, qwen3_moe and olmoe, with experts in
    stacked tensors or a module each. For all others common names are tried, and the proposal says so. A tensor that is
    shared counts once. Raises HpxferError if `extra` is no mapping or pairs; what it holds is checked where it is used.
    """
    plain = plain_names(model)
    parameters = {plain(name): one for name, one in model.named_parameters(remove_duplicate=False)}
    buffers: Sizes = {plain(name): tuple(one.shape) for name, one in model.named_buffers()}
    sizes: Sizes = {name: tuple(one.shape) for name, one in parameters.items()}
    kind = kind_of(unwrapped(model))
    found = ROLES_OF[kind] if kind else _by_names(sizes)
    matches, taken = [], set[str]()
    for pattern, role in dict.fromkeys((*pairs_of(extra or ()), *found)):
        searched = sizes if role != "router_bias" else {**sizes, **buffers}
        names = tuple(name for name in searched if name not in taken and fnmatchcase(name, pattern))
        taken |= set(names)
        if names:
            matches.append(Match(pattern=pattern, role=role, names=names, size=searched[names[0]]))
    # Of a shared tensor the first name must have a role, as a recipe will ask of it.
    without = tuple(first for first, *_ in names_of_each(parameters) if first not in taken)
    return ProposedRoles(kind=kind, matches=tuple(matches), unmatched=without)


def kind_of(model: Any) -> str | None:
    """Return the `config.model_type` of a model (or of a config) whose names are known, else None."""
    kind = getattr(getattr(model, "config", model), "model_type", None)
    return kind if isinstance(kind, str) and kind in ROLES_OF else None


def _by_names(sizes: Sizes) -> Pairs:
    """Return common patterns for a model of any kind.

    A matrix called `gate` is a router beside experts and half of a SwiGLU anywhere else, and `w1` is one or the other
    half of an FFN: what else there is decides.
    """
    has_experts = any(fnmatchcase(name, "*experts.*") for name in sizes)
    out = [*COMMON]
    for where, kind in FFNS:
        if kind == "dense" and has_experts:
            out.append(("*.gate.weight", "router"))
        inside = [name for name in sizes if fnmatchcase(name, where)]
        out += [(f"{where}gate_up_proj{end}", f"{kind}_in{JOIN}{kind}_gate") for end in ("", ".weight")]
        three = any(fnmatchcase(name, f"{where}.w3{end}") for name in inside for end in ("", ".weight"))
        spelled = [(name, part) for part, names in IN_FFN.items() for name in names]
        if kind == "dense" and has_experts:
            spelled.remove(("gate", "gate"))
        for name, part in [*spelled, *NUMBERED[three].items()]:
            out += [(f"{where}.{name}{end}", f"{kind}_{part}") for end in ("", ".weight")]
            out += [(f"{where}.{name}.bias", "hidden_bias")]
    out += [(f"*.{name}.bias", "hidden_bias") for name in ("*attn.*", "*attention.*")]
    return (*out, *HEADS)
