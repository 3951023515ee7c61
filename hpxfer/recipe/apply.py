"""Apply: from roles and their numbers to the tensors of a torch model. Imports torch only where it must."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.recipe.match import Roles, match_roles
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.roles import ROLES

if TYPE_CHECKING:
    import torch

# The balancing rule moves it; the optimizer does not.
BALANCED = "router_bias"
# One tensor in two roles: tied embeddings. The readout's rule then speaks of the forward multiplier alone.
TIED = {"embedding", "readout"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Named:
    """A tensor of the model with its name (the first, if it is shared) and its role."""

    name: str
    role: str
    tensor: torch.Tensor


def assign(
    model: torch.nn.Module, roles: Roles, refused: Mapping[str, str], width: int
) -> tuple[tuple[Named, ...], tuple[Named, ...]]:
    """Return the model's parameters, each once, and those of its buffers that are router biases.

    Raises HpxferError if `roles` does not fit the model, or the model does not have this width.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers())
    names = _names_of_each(parameters)
    # A pattern may be written for any name of a shared tensor; the first must have one.
    aliases = [alias for _, *others in names for alias in others]
    role_of = match_roles([first for first, *_ in names], [*aliases, *buffers], roles, refused)
    faults: list[str] = []
    named = [_named(each, role_of, parameters, faults) for each in names]
    faults += [fault for one in named if (fault := _misfit(one, width))]
    if faults:
        raise HpxferError("\n".join(faults))
    balanced = [name for name in buffers if role_of.get(name) == BALANCED]
    return tuple(named), tuple(Named(name=name, role=BALANCED, tensor=buffers[name]) for name in balanced)


def make_groups(
    named: Iterable[Named], values: Mapping[str, Multipliers], betas: tuple[float, float] | None
) -> list[dict[str, Any]]:
    """Return optimizer groups, one for each set of equal numbers, in the order of the model's parameters.

    `betas` is None for SGD, which has no eps either.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in named:
        if one.role == BALANCED or not one.tensor.requires_grad:
            continue
        at = values[one.role]
        numbers: dict[str, Any] = {"lr": at.lr, "weight_decay": at.weight_decay}
        if betas is not None:
            numbers |= {"eps": at.eps, "betas": betas}
        group = groups.setdefault(tuple(numbers.values()), {"params": [], **numbers, "names": (), "roles": ()})
        group["params"].append(one.tensor)
        group["names"] += (one.name,)
        if one.role not in group["roles"]:
            group["roles"] += (one.role,)
    return list(groups.values())


def initialize(named: Sequence[Named], values: Mapping[str, Multipliers], generator: torch.Generator | None) -> None:
    """Fill the tensors in place: gains with ones, what has a std with normal numbers, the rest with zeros."""
    import torch

    with torch.no_grad():
        for one in named:
            std = values[one.role].init_std
            if ROLES[one.role] == "ones":
                one.tensor.fill_(1.0)
            elif std:
                one.tensor.normal_(0.0, std, generator=generator)
            else:
                one.tensor.zero_()


def _names_of_each(parameters: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Return the names of every tensor, tensors in the order in which the model names them."""
    names: dict[int, list[str]] = {}
    for name, tensor in parameters.items():
        names.setdefault(id(tensor), []).append(name)
    return list(names.values())


def _named(
    names: Sequence[str], role_of: Mapping[str, str], parameters: Mapping[str, torch.Tensor], faults: list[str]
) -> Named:
    names = [name for name in names if name in role_of]
    found = list(dict.fromkeys(role_of[name] for name in names))
    if len(found) > 1 and set(found) != TIED:
        spelled = ", ".join(f"{name} ({role_of[name]})" for name in names)
        faults.append(f"roles: {spelled} are one tensor and must have one role, got {len(found)}; correct the patterns")
    role = "embedding" if set(found) == TIED else found[0]
    return Named(name=names[0], role=role, tensor=parameters[names[0]])


def _misfit(one: Named, width: int) -> str | None:
    """Return why this tensor cannot have its role in a model of this width, or None."""
    if ROLES[one.role] in ("ones", "zeros"):
        return None
    size = tuple(one.tensor.shape)
    if len(size) < 2:
        return f"roles: {one.name}: a tensor of role {one.role} must be a matrix, got size {size}; biases: hidden_bias"
    if width not in size:
        return (
            f"target_shape: {one.name} ({one.role}) must have the target's width {width} as one of its dimensions, "
            f"got size {size}; give the shape of this model, or correct the patterns"
        )
    return None
