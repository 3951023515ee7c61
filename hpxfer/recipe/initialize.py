"""Initialize: fill the tensors of a model with the numbers of their roles, in place, whole or sharded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.recipe.apply import Named
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape

if TYPE_CHECKING:
    import torch

EXPERTS = ("expert_in", "expert_gate", "expert_out")


def initialize(
    named: Sequence[Named],
    values: Mapping[str, Multipliers],
    generator: torch.Generator | None,
    *,
    shape: Shape,
    tied_experts: bool,
) -> None:
    """Fill the tensors in place: gains with ones, what has a std with normal numbers, the rest with zeros.

    With `tied_experts` all experts of a layer get the same draw. Raises HpxferError, and fills nothing, if a tensor has
    no memory yet or experts cannot be told apart.
    """
    import torch

    if meta := [one.name for one in named if one.tensor.is_meta]:
        raise HpxferError(f"init_: tensors must have memory, got meta ones: {', '.join(meta)}; model.to_empty first")
    copies = _copies(named, shape) if tied_experts else {}
    drawn: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for one in named:
            std = one.numbers(values).init_std
            if ROLES[one.roles[0]] == "ones":
                one.tensor.fill_(1.0)
            elif not std:
                one.tensor.zero_()
            elif one.name not in copies:
                _put(one.tensor, _normal(tuple(one.tensor.shape), one.tensor, std, generator))
            else:
                key = copies[one.name]
                stacked = key == one.name
                if key not in drawn:
                    size = tuple(one.tensor.shape)[1:] if stacked else tuple(one.tensor.shape)
                    drawn[key] = _normal(size, one.tensor, std, generator)
                whole = drawn[key].expand(tuple(one.tensor.shape))
                _put(one.tensor, whole.contiguous())
                if stacked:
                    del drawn[key]


def _normal(size: tuple[int, ...], like: torch.Tensor, std: float, generator: torch.Generator | None) -> torch.Tensor:
    """Return a whole tensor of normal numbers, of the type and device of `like`, sharded or not."""
    import torch

    return torch.empty(size, dtype=like.dtype, device=like.device).normal_(0.0, std, generator=generator)


def _put(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy `whole` into a tensor; of a sharded one (DTensor), every rank takes its part of the first rank's draw."""
    if hasattr(tensor, "device_mesh"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(tensor, DTensor)
        whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements)
    tensor.copy_(whole)


def _copies(named: Sequence[Named], shape: Shape) -> dict[str, str]:
    """Return name of every expert tensor -> what its draw is shared under: itself, if it holds all of a layer's."""
    experts = [one for one in named if set(one.roles) <= set(EXPERTS)]
    names = {one.name for one in experts}
    out = {}
    for one in experts:
        size = tuple(one.tensor.shape)
        matrix = shape.width * shape.expert_width * len(one.roles)
        if len(size) > 2 and size[0] == shape.num_experts:
            out[one.name] = one.name
        elif one.tensor.numel() == matrix and (key := _without_index(one.name, names, shape.num_experts)):
            out[one.name] = key
        else:
            raise HpxferError(
                f"init_: {one.name}: experts that start from one draw must be a tensor [{shape.num_experts}, ...] or "
                f"{shape.num_experts} matrices of {matrix} elements that differ in a number of their names, got size "
                f"{size}; initialize the experts of this model by hand"
            )
    return out


def _without_index(name: str, names: set[str], num_experts: int) -> str | None:
    """Return the name with `#` for the number that counts the experts: the last that takes num_experts values."""
    parts = name.split(".")
    for place in reversed([i for i, part in enumerate(parts) if part.isdigit()]):
        siblings = (".".join([*parts[:place], str(i), *parts[place + 1 :]]) for i in range(num_experts))
        if all(one in names for one in siblings):
            return ".".join([*parts[:place], "#", *parts[place + 1 :]])
    return None
