"""Assign: which tensor of a torch model has which role, its fan-in, and the parameter groups. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.recipe.match import AT, JOIN, Roles, match_roles, one_per_pattern
from hpxfer.recipe.matrices import Matrices, matrices_of
from hpxfer.recipe.modules import class_of, plain_modules, plain_names
from hpxfer.recipe.own_factors import INPUTS, NONE, OwnFactors, of_embedding, of_fan_in
from hpxfer.recipe.probe import Gain, embedding_scale, gain_of
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.muon import NAME, by, muon_of
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape

if TYPE_CHECKING:
    import torch

    from hpxfer.recipe.resolved import Resolved


# The balancing rule updates it, and the optimizer does not.
BALANCED = "router_bias"
# The two roles of tied embeddings. The tensor follows the embedding's rule; the readout's gives its forward multiplier.
TIED = {"embedding", "readout"}
Faults = list[tuple[str, str]]  # a name, and a sentence about it
# The numbers that the matrices in one tensor must share.
OF_A_TENSOR = ("init_std", "lr", "eps", "weight_decay")


@dataclass(frozen=True, kw_only=True, eq=False)
class RoleTensor:
    """A tensor of the model with its role and its name, which is the first one if it is shared.

    Names are those of the model without wrappers. A tensor that holds several matrices has their roles, joined by `+`.
    Tied embeddings have the role embedding. `own` are factors of this tensor beside the numbers of its role.
    """

    name: str
    role: str
    tensor: torch.Tensor
    tied: bool = False
    base_fan_in: int | None = None  # given with the role
    own: OwnFactors = field(default_factory=OwnFactors)
    gain: Gain | None = None  # of a norm, if it was found out
    numbers: Multipliers = NONE  # those of its role times its own. Several roles in one tensor have the same numbers
    by: str = ""  # under Muon, which of its two parts moves it: muon or adamw
    matrices: Matrices | None = None  # of what Muon moves

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.role.split(JOIN))

    @property
    def is_fixed(self) -> bool:
        """Whether it is a fixed table of positions, such as sines and cosines, which nothing trains or initializes."""
        return self.role == "position" and not self.tensor.requires_grad


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """The parameters of a model, each once, and the buffers that are router biases."""

    parameters: tuple[RoleTensor, ...]
    buffers: tuple[RoleTensor, ...]

    @property
    def tensors(self) -> tuple[RoleTensor, ...]:
        return (*self.parameters, *self.buffers)

    @property
    def tied_embeddings(self) -> bool | None:
        """Whether embedding and readout are one tensor, or None if the model has no readout."""
        if any(parameter.tied for parameter in self.parameters):
            return True
        return False if any(parameter.role == "readout" for parameter in self.parameters) else None


def assign(model: torch.nn.Module, roles: Roles, at: Resolved) -> Assigned:
    """Return the parameters and buffers of the model with their roles.

    Raises HpxferError if `roles` does not fit the model, if the model does not have the target's sizes, if matrices in
    one tensor would have to get different numbers, or if the optimizer would lose a parameter that it trains.
    """
    plain = plain_names(model)
    parameters = {plain(name): tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    buffers = {plain(name): tensor for name, tensor in model.named_buffers()}
    names = names_of_each(parameters)
    # Patterns may match any name of a shared tensor, and must match the first.
    aliases = [alias for _, *others in names for alias in others]
    role_of = match_roles([first for first, *_ in names], [*aliases, *buffers], roles, at.refused)
    faults: Faults = []
    found = [_role_tensor(of_tensor, role_of, parameters, faults) for of_tensor in names]
    modules = plain_modules(model)
    found = [_with_own(item, modules, at, faults) for item in found]
    found = [_with_matrices(item, modules, at, faults) for item in found]
    faults += [
        (item.name, fault) for item in found if (fault := _misfit(item, at.target) or _disagree(item, at.values))
    ]
    if faults:
        raise HpxferError("\n".join(one_per_pattern(faults)))
    balanced = [name for name in buffers if role_of.get(name) == BALANCED]
    found += [RoleTensor(name=name, role=BALANCED, tensor=buffers[name]) for name in balanced]
    found = [replace(item, numbers=at.values[item.roles[0]] * item.own.numbers) for item in found]
    return Assigned(parameters=tuple(found[: len(names)]), buffers=tuple(found[len(names) :]))


def make_groups(
    parameters: Iterable[RoleTensor], betas: tuple[float, float] | None, momentum: float
) -> list[dict[str, Any]]:
    """Return one optimizer group per set of equal numbers, in the order of the model's parameters.

    `betas` is None for SGD, which has no eps either. The momentum is that of Muon. Its groups hold None as betas, so
    that AdamW stops at its first step: else it would train them without a word, at an LR that is not for it.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for item in parameters:
        if not item.tensor.requires_grad:
            continue
        numbers: dict[str, Any] = {"lr": item.numbers.lr, "weight_decay": item.numbers.weight_decay}
        if item.matrices is not None:
            split = item.matrices
            split_as = {"scale": split.scales, "axis": split.axis, "parts": split.parts}
            numbers |= {"betas": None, "momentum": momentum, **split_as}
        elif betas is not None:
            numbers |= {"eps": item.numbers.eps, "betas": betas}
        fresh = {"params": [], **numbers, "peak_lr": item.numbers.lr, "names": (), "roles": ()}
        group = groups.setdefault(tuple(numbers.items()), fresh)
        group["params"].append(item.tensor)
        group["names"] += (item.name,)
        group["roles"] += tuple(role for role in item.roles if role not in group["roles"])
    return list(groups.values())


def names_of_each(parameters: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Return the names of each tensor, in the order in which the model names its tensors."""
    names: dict[int, list[str]] = {}
    for name, tensor in parameters.items():
        names.setdefault(id(tensor), []).append(name)
    return list(names.values())


def _role_tensor(
    names: Sequence[str],
    role_of: Mapping[str, str],
    parameters: Mapping[str, torch.Tensor],
    faults: Faults,
) -> RoleTensor:
    names = [name for name in names if name in role_of]
    found = list(dict.fromkeys(role_of[name] for name in names))
    tied = set(found) == TIED
    if len(found) > 1 and not tied:
        spelled = ", ".join(f"{name} ({role_of[name]})" for name in names)
        fault = f"roles: {spelled} are one tensor and must have one role, got {len(found)}; correct the patterns"
        faults.append((names[0], fault))
    role, _, fan_in = ("embedding" if tied else found[0]).partition(AT)
    base_fan_in = int(fan_in) if fan_in else None
    return RoleTensor(name=names[0], role=role, tensor=parameters[names[0]], tied=tied, base_fan_in=base_fan_in)


def _with_own(item: RoleTensor, modules: Mapping[str, torch.nn.Module], at: Resolved, faults: Faults) -> RoleTensor:
    """Return the tensor with what its module does to it: its fan-in, the scale of an embedding, the kind of a gain."""
    path, _, name = item.name.rpartition(".")
    module = modules[path]
    size, kind = tuple(item.tensor.shape), ROLES[item.roles[0]]
    if kind == "zeros" or (kind == "matrix" and at.target.width not in size and item.base_fan_in is None):
        return item
    try:
        if kind == "ones":
            return replace(item, gain=gain_of(module, name))
        if item.role == "embedding":
            around = modules.get(path.rpartition(".")[0])
            factors = of_embedding(at, embedding_scale(module, name, around, at.target.width), tied=item.tied)
        else:
            # The outputs of attention and of an FFN in one tensor have no fan-in of their own.
            fused = len(item.roles) > 1 and not set(item.roles) <= set(INPUTS)
            fan_in = None if fused else fan_in_of(item.roles[0], size, module, name, at.target)
            factors = of_fan_in(at, item.roles[0], fan_in, item.base_fan_in)
    except HpxferError as error:
        faults.append((item.name, f"roles: {item.name}: {error}"))
        return item
    return replace(item, own=factors)


def _with_matrices(
    item: RoleTensor, modules: Mapping[str, torch.nn.Module], at: Resolved, faults: Faults
) -> RoleTensor:
    """Return the tensor with the part of Muon that moves it, and with its matrices if that part is Muon's own."""
    muon, moved_by = muon_of(at.recipe.column), [by(at.recipe.column, role) for role in item.roles]
    item, size = replace(item, by=moved_by[0]), tuple(item.tensor.shape)
    if muon is None or NAME not in moved_by or len(size) < 2:
        return item
    try:
        if len(set(moved_by)) > 1:
            raise HpxferError(f"what Muon moves and what AdamW moves must be tensors of their own, got {item.role}")
        matrices = matrices_of(item.roles, size, modules[item.name.rpartition(".")[0]], item.name, at.target, muon)
    except HpxferError as error:
        faults.append((item.name, f"roles: {item.name} ({item.role}) of size {size}, under Muon: {error}"))
        return item
    return replace(item, matrices=matrices)


def _misfit(item: RoleTensor, target: Shape) -> str | None:
    """Return why this tensor cannot have its role in a model of this shape, or None."""
    if item.role == BALANCED and item.tensor.requires_grad:
        return (
            f"roles: {item.name} (router_bias): a balancing rule moves such a bias, and no optimizer, but this is a "
            "parameter that an optimizer trains; give it the role hidden_bias, or requires_grad_(False) if a rule "
            "moves it"
        )
    size = tuple(item.tensor.shape)
    if ROLES[item.roles[0]] in ("ones", "zeros"):
        if _is_vector(item, target):
            return None
        rule = f"a tensor of role {item.role} must be a vector, or one per layer, head or expert, got size {size}"
        return f"roles: {item.name}: {rule}; give the role of its matrices, or narrow the pattern"
    if len(size) < 2:
        rule = f"a tensor of role {item.role} must be a matrix, got size {size}"
        if item.role == "router" and size != (target.num_experts,):
            flat = size == (target.num_experts * target.width,)
            known = "a matrix in one row must keep its two dimensions" if flat else "a gain that starts at 1: norm"
            return f"roles: {item.name}: {rule}, no bias of {target.num_experts} experts; {known}"
        return f"roles: {item.name}: {rule}; biases: hidden_bias"
    needed = {"width": target.width} if item.base_fan_in is None else {}
    # A router of a single number is the gate of a shared expert.
    needed |= {"num_experts": target.num_experts} if item.role == "router" and 1 not in size else {}
    left = list(size)  # each dimension is one of them
    rules = []
    for name, dim in needed.items():
        if dim in left:
            left.remove(dim)
        else:
            rules.append(f"the target's {name} {dim} as one of its dimensions")
    if rules or (rules := _wrong_ffn(item, target)):
        return (
            f"target_shape: {item.name} ({item.role}) must have {rules[0]}, got size {size}; give the shape of this "
            f"model, or correct the patterns{_of_low_rank(item)}"
        )
    return None


def _is_vector(item: RoleTensor, target: Shape) -> bool:
    """Return whether a tensor can hold gains or biases. All layers may share it, with the depth in front."""
    size = [dim for dim in item.tensor.shape if dim > 1]
    if len(size) > 1 and size[0] == target.depth:
        size = size[1:]
    if len(size) < 2:
        return True
    heads, of_heads = (target.query_heads, target.key_heads), size[-1] == target.head_dim
    if ROLES[item.role] == "ones":
        return len(size) == 2 and of_heads and size[0] in heads
    # The biases of queries, keys and values may stand side by side, and so may those of the parts of a modulation.
    return of_heads or (len(size) == 2 and size[0] in (2, 3, 6, target.num_experts, target.num_shared))


def _of_low_rank(item: RoleTensor) -> str:
    inner = item.tensor.shape[-1]
    return f"; of a low rank: {item.role}@{inner}, its fan-in at the base" if set(item.roles) <= set(INPUTS) else ""


def _wrong_ffn(item: RoleTensor, target: Shape) -> list[str]:
    """Return the rule that the size of an FFN's tensor breaks. It holds one FFN, or all FFNs of a layer."""
    kinds = {role.partition("_")[0] for role in item.roles}
    name, most = {
        "dense": ("dense_width", 1),
        "shared": ("shared_width", target.num_shared),
        "expert": ("expert_width", target.num_experts),
    }.get(kinds.pop() if len(kinds) == 1 else "", ("", 0))
    if not most:
        return []  # no FFN, or fused with other matrices
    hidden = getattr(target, name)
    num_ffns, rest = divmod(item.tensor.numel(), target.width * hidden * len(item.roles))
    size = tuple(item.tensor.shape)
    # A stack of matrices holds those of all experts, or of one expert all that it has.
    is_whole = len(size) < 3 or num_ffns == most or len(item.roles) == size[0]
    if num_ffns in (1, most) and not rest and is_whole:  # one module each, or stacked or side by side in one tensor
        return []
    each = f"{len(item.roles)} x " if len(item.roles) > 1 else ""
    return [f"{each}width {target.width} x {name} {hidden} elements, once or {most} times, as the target says"]


def _disagree(item: RoleTensor, values: Mapping[str, Multipliers]) -> str | None:
    """Return which number differs between the matrices in this tensor, or None."""
    for name in OF_A_TENSOR:
        numbers = {role: getattr(values[role], name) for role in item.roles}
        first, *others = numbers.values()
        if not all(math.isclose(first, other, rel_tol=1e-9) for other in others):
            spelled = ", ".join(f"{role} {number:.6g}" for role, number in numbers.items())
            return (
                f"roles: {item.name}: the matrices in one tensor must have one {name}, got {spelled}; give these roles "
                "the same multipliers, or split the tensor"
            )
    return None


def fan_in_of(role: str, size: tuple[int, ...], module: torch.nn.Module, name: str, target: Shape) -> int | None:
    """Return the fan-in of a tensor of this role, or None if the tensor does not show it.

    A linear layer shows it, and a convolution. Of other tensors only the output matrix of attention does: it has the
    width, and either heads x head_dim or these two apart. All layers may share the tensor, with the depth in front.
    """
    from torch import nn

    if name == "weight" and isinstance(module, nn.Conv2d):
        return math.prod(size[1:])
    if name == "weight" and len(size) == 2:
        if isinstance(module, nn.Linear):
            return size[1]
        if class_of(module).__name__ == "Conv1D":  # of transformers, [in, out]
            return size[0]
    return _of_attention(size, target) if role == "attn_out" and target.width in size else None


def _of_attention(size: tuple[int, ...], target: Shape) -> int | None:
    """Return heads x head_dim, from the size of an output matrix of attention."""
    rest = list(size)
    rest.remove(target.width)
    by_heads = len(rest) > 1 and rest[-1] == target.head_dim
    fan_in = rest.pop() * (rest.pop() if by_heads else 1)
    return fan_in if rest in ([], [target.depth]) else None
