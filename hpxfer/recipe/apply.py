"""Apply: from roles and their numbers to the tensors of a torch model. Imports torch only where it must."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.recipe.match import JOIN, Roles, match_roles
from hpxfer.recipe.names import plain_names
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape

if TYPE_CHECKING:
    import torch

# The balancing rule moves it; the optimizer does not.
BALANCED = "router_bias"
# One tensor in two roles: tied embeddings. The readout's rule then speaks of the forward multiplier alone.
TIED = {"embedding", "readout"}
# What the matrices in one tensor must agree on.
OF_A_TENSOR = ("init_std", "lr", "eps", "weight_decay")


@dataclass(frozen=True, kw_only=True, eq=False)
class Named:
    """A tensor of the model with its name (the first, if it is shared) and its role.

    Names are those of the model without wrappers. The role of a tensor that holds several matrices is theirs, joined
    by `+`; that of tied embeddings is embedding.
    """

    name: str
    role: str
    tensor: torch.Tensor
    tied: bool = False

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.role.split(JOIN))

    def numbers(self, values: Mapping[str, Multipliers]) -> Multipliers:
        """Return the numbers of the role; of the first, if there are several, which `assign` has found to agree."""
        return values[self.roles[0]]


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """The parameters of a model, each once, and those of its buffers that are router biases."""

    parameters: tuple[Named, ...]
    buffers: tuple[Named, ...]

    @property
    def tied_embeddings(self) -> bool | None:
        """Whether embedding and readout are one tensor; None if the model has no readout at all."""
        if any(one.tied for one in self.parameters):
            return True
        return False if any(one.role == "readout" for one in self.parameters) else None


def assign(
    model: torch.nn.Module, roles: Roles, refused: Mapping[str, str], target: Shape, values: Mapping[str, Multipliers]
) -> Assigned:
    """Return what of the model has which role.

    Raises HpxferError if `roles` does not fit the model, the model does not have the target's sizes, or matrices in
    one tensor would have to get different numbers.
    """
    plain = plain_names(model)
    parameters = {plain(name): tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    buffers = {plain(name): tensor for name, tensor in model.named_buffers()}
    names = names_of_each(parameters)
    # A pattern may be written for any name of a shared tensor; the first must have one.
    aliases = [alias for _, *others in names for alias in others]
    role_of = match_roles([first for first, *_ in names], [*aliases, *buffers], roles, refused)
    faults: list[str] = []
    named = [_named(each, role_of, parameters, faults) for each in names]
    faults += [fault for one in named if (fault := _misfit(one, target) or _disagree(one, values))]
    if faults:
        raise HpxferError("\n".join(faults))
    balanced = [name for name in buffers if role_of.get(name) == BALANCED]
    return Assigned(
        parameters=tuple(named),
        buffers=tuple(Named(name=name, role=BALANCED, tensor=buffers[name]) for name in balanced),
    )


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
        at = one.numbers(values)
        numbers: dict[str, Any] = {"lr": at.lr, "weight_decay": at.weight_decay}
        if betas is not None:
            numbers |= {"eps": at.eps, "betas": betas}
        fresh = {"params": [], **numbers, "peak_lr": at.lr, "names": (), "roles": ()}
        group = groups.setdefault(tuple(numbers.values()), fresh)
        group["params"].append(one.tensor)
        group["names"] += (one.name,)
        group["roles"] += tuple(role for role in one.roles if role not in group["roles"])
    return list(groups.values())


def names_of_each(parameters: Mapping[str, torch.Tensor]) -> list[list[str]]:
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
    tied = set(found) == TIED
    if len(found) > 1 and not tied:
        spelled = ", ".join(f"{name} ({role_of[name]})" for name in names)
        faults.append(f"roles: {spelled} are one tensor and must have one role, got {len(found)}; correct the patterns")
    role = "embedding" if tied else found[0]
    return Named(name=names[0], role=role, tensor=parameters[names[0]], tied=tied)


def _misfit(one: Named, target: Shape) -> str | None:
    """Return why this tensor cannot have its role in a model of this shape, or None."""
    if ROLES[one.roles[0]] in ("ones", "zeros"):
        return None
    size = tuple(one.tensor.shape)
    if len(size) < 2:
        return f"roles: {one.name}: a tensor of role {one.role} must be a matrix, got size {size}; biases: hidden_bias"
    needed = {"width": target.width} | ({"num_experts": target.num_experts} if one.role == "router" else {})
    rules = [f"the target's {name} {dim} as one of its dimensions" for name, dim in needed.items() if dim not in size]
    if rules or (rules := _wrong_ffn(one, target)):
        return (
            f"target_shape: {one.name} ({one.role}) must have {rules[0]}, got size {size}; give the shape of this "
            "model, or correct the patterns"
        )
    return None


def _wrong_ffn(one: Named, target: Shape) -> list[str]:
    """Return what the matrices of an FFN should be and are not: those of one FFN, or of all that a layer has."""
    kinds = {role.partition("_")[0] for role in one.roles}
    name, most = {
        "dense": ("dense_width", 1),
        "shared": ("shared_width", target.num_shared),
        "expert": ("expert_width", target.num_experts),
    }.get(kinds.pop() if len(kinds) == 1 else "", ("", 0))
    if not most:
        return []  # no FFN, or fused with what is none
    hidden = getattr(target, name)
    num_ffns, rest = divmod(one.tensor.numel(), target.width * hidden * len(one.roles))
    if num_ffns in (1, most) and not rest:  # a module each, or stacked or side by side in one tensor
        return []
    each = f"{len(one.roles)} x " if len(one.roles) > 1 else ""
    return [f"{each}width {target.width} x {name} {hidden} elements, once or {most} times, as the target says"]


def _disagree(one: Named, values: Mapping[str, Multipliers]) -> str | None:
    """Return why the matrices in this tensor cannot be treated alike, or None."""
    for name in OF_A_TENSOR:
        numbers = {role: getattr(values[role], name) for role in one.roles}
        first, *others = numbers.values()
        if not all(math.isclose(first, other, rel_tol=1e-9) for other in others):
            spelled = ", ".join(f"{role} {number:.6g}" for role, number in numbers.items())
            return (
                f"roles: {one.name}: the matrices in one tensor must have one {name}, got {spelled}; give these roles "
                "the same multipliers, or split the tensor"
            )
    return None
