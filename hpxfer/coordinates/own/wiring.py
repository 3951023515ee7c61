"""Wire a user's model as its recipe says, or take the user's own wiring as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hpxfer.coordinates.own.load import OwnModule, calling, require_optimizer
from hpxfer.coordinates.own.parts import Held, held
from hpxfer.errors import HpxferError
from hpxfer.recipe import (
    AT,
    Recipe,
    Resolved,
    Roles,
    declared,
    known_model,
    left_to_multiply,
    pairs_of,
    plain_names,
    unattached,
)
from hpxfer.recipe import roles as proposed
from hpxfer.scaling.numbers import TensorNumbers
from hpxfer.scaling.shape import Shape


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model at one shape, and what the recipe says of its tensors."""

    model: nn.Module
    rows: tuple[TensorNumbers, ...]
    tensors: tuple[Held, ...]
    roles: Roles
    tied: bool


def wired(own: OwnModule, recipe: Recipe, model: nn.Module, shape: Shape, *, seed: int, at: str) -> Built:
    """Attach the multipliers and initialize, unless the user's code does so. Return the model with its roles."""
    given = own.roles
    if callable(given):
        with calling("roles", at):
            given = given(model)
    with calling("the recipe", at):
        roles = pairs_of(proposed(model) if given is None else given)
        if own.optimizer is None:
            attach(own, recipe, model, roles, shape)
            generator = torch.Generator(device=next(model.parameters()).device).manual_seed(seed)
            recipe.init_(model, roles, shape, generator=generator)
        rows = recipe.explain(model, roles, shape).rows
    plain = plain_names(model)
    parameters = {plain(name): tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    tied = any(row.note is not None and row.note.startswith("embedding and readout are one") for row in rows)
    return Built(model=model, rows=rows, tensors=held(rows, parameters), roles=roles, tied=tied)


def attach(own: OwnModule, recipe: Recipe, model: nn.Module, roles: Roles, shape: Shape) -> None:
    """Attach the forward multipliers. A model that has them already keeps them.

    Raises HpxferError if the recipe has multipliers, and nothing says where they act.
    """
    numbers = left_to_multiply(model, Resolved(recipe, shape))
    known = known_model(model) is not None
    if declared(model) is not None:
        return
    # Common attention divides by sqrt(d_head) without being told.
    common = bool(shape.head_dim) and numbers.get("attn_logits") == shape.head_dim**-0.5
    if own.sites is not None or own.by_hand or known:
        sites = () if own.sites is None and not known else own.sites
        has_site = sites is None or any(key == "attn_logits" for _, key in pairs_of(sites))
        by_hand = {*own.by_hand, *(("attn_logits",) if common and not has_site else ())}
        recipe.attach(model, shape, sites, by_hand=sorted(by_hand))
    elif unattached(model, shape, numbers):
        told = [key for key, by in numbers.items() if by != 1.0 and not (common and key == "attn_logits")]
        named = {role: pattern for pattern, role in pairs_of(roles)}
        names = ", ".join(f"{key} ({numbers[key]:.6g}){f' on {named[key]}' if key in named else ''}" for key in told)
        raise HpxferError(
            f"the forward multipliers must have a place, got none for {names}; give `sites`, e.g. "
            '{"*.attention": "attn_out", "head": "readout"}, or name those that the model applies: '
            f"by_hand = {told}"
        )


def optimizer_of(
    own: OwnModule, recipe: Recipe, built: Built, given: Any, shape: Shape, *, at: str
) -> torch.optim.Optimizer:
    """Return the user's optimizer, or else that of the recipe."""
    if own.optimizer is not None:
        with calling("optimizer", at):
            made = own.optimizer(built.model, given)
        return require_optimizer(made, built.model, "optimizer", at)
    with calling("the recipe", at):
        groups = recipe.param_groups(built.model, built.roles, shape)
    return torch.optim.SGD(groups) if recipe.column == "sgd" else torch.optim.AdamW(groups)


def role_conflicts(built: Built) -> Iterator[str]:
    """Yield each tensor whose name says another role than the one that it was given."""
    names = {name: match.role for match in proposed(built.model).matches for name in match.names}
    for row in built.rows:
        by_name = names.get(row.name)
        if by_name is not None and by_name != row.role.partition(AT)[0]:
            yield f"{row.name} has the role {row.role}, and its name says {by_name}"
