"""Initialize: fill the tensors of a model by the numbers of their roles, in place, whether sharded or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.recipe.assign import RoleTensor
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape

if TYPE_CHECKING:
    import torch

EXPERTS = ("expert_in", "expert_gate", "expert_out")


def initialize(
    named: Sequence[RoleTensor],
    generator: torch.Generator | None,
    *,
    shape: Shape,
    tied_experts: bool,
) -> None:
    """Fill the tensors in place: gains with ones, tensors with a std with normal numbers, all others with zeros.

    A fixed table of positions stays. With `tied_experts` all experts of a layer get the same draw. Raises HpxferError,
    and fills nothing, if a tensor has no memory yet, or if the experts of a layer cannot be told apart.
    """
    import torch

    if meta := [item.name for item in named if item.tensor.is_meta]:
        raise HpxferError(f"init_: tensors must have memory, got meta ones: {', '.join(meta)}; model.to_empty first")
    if unclear := [item.name for item in named if _is_unclear(item)]:
        raise HpxferError(
            "init_: a gain must show whether it is w or 1 + w, got zeros and no forward pass that shows it alone: "
            f"{', '.join(unclear)}; put it into a module whose forward(x) multiplies by it, or fill a plain w with ones"
        )
    copies = _copies(named, shape) if tied_experts else {}
    drawn: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for item in named:
            tensor, size = item.tensor, tuple(item.tensor.shape)
            std = item.numbers.init_std
            if item.is_fixed:
                continue
            if ROLES[item.roles[0]] == "ones":
                tensor.fill_(1.0 - (item.gain.offset if item.gain else 0.0))
            elif not std:
                tensor.zero_()
            elif item.name not in copies:
                _put(tensor, _normal(size, tensor, std, generator))
            else:
                key = copies[item.name]
                stacked = key == item.name  # one tensor holds all experts of a layer
                if key not in drawn:
                    drawn[key] = _normal(size[1:] if stacked else size, tensor, std, generator)
                _put(tensor, drawn[key].expand(size).contiguous())
                if stacked:
                    del drawn[key]


def _is_unclear(item: RoleTensor) -> bool:
    """Return whether nothing but its start at zero says that a gain may be of the kind 1 + w."""
    return ROLES[item.roles[0]] == "ones" and item.gain is None and not item.tensor.any()


def _normal(size: tuple[int, ...], like: torch.Tensor, std: float, generator: torch.Generator | None) -> torch.Tensor:
    """Return a tensor of normal numbers with the type and device of `like`. It is never sharded."""
    import torch

    return torch.empty(size, dtype=like.dtype, device=like.device).normal_(0.0, std, generator=generator)


def _put(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy `whole` into a tensor. If it is sharded (DTensor), each rank takes its part of the first rank's draw."""
    if hasattr(tensor, "device_mesh"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(tensor, DTensor)
        whole = distribute_tensor(whole, tensor.device_mesh, tensor.placements)
    tensor.copy_(whole)


def _copies(named: Sequence[RoleTensor], shape: Shape) -> dict[str, str]:
    """Return the name of each expert tensor -> the key of its draw, which all experts of a layer share.

    A tensor that holds all experts of a layer has its own name as key.
    """
    experts = [item for item in named if set(item.roles) <= set(EXPERTS)]
    names = {item.name for item in experts}
    out = {}
    for item in experts:
        size = tuple(item.tensor.shape)
        matrix = shape.width * shape.expert_width * len(item.roles)
        if len(size) > 2 and size[0] == shape.num_experts:
            out[item.name] = item.name
        elif item.tensor.numel() == matrix and (key := _without_index(item.name, names, shape.num_experts)):
            out[item.name] = key
        else:
            raise HpxferError(
                f"init_: {item.name}: experts that start from one draw must be a tensor [{shape.num_experts}, ...] or "
                f"{shape.num_experts} matrices of {matrix} elements that differ in a number of their names, got size "
                f"{size}; initialize the experts of this model by hand"
            )
    return out


def _without_index(name: str, names: set[str], num_experts: int) -> str | None:
    """Return the name with `#` in place of the expert's number, which is the last number with num_experts values."""
    parts = name.split(".")
    for at in reversed([i for i, part in enumerate(parts) if part.isdigit()]):
        siblings = (".".join([*parts[:at], str(i), *parts[at + 1 :]]) for i in range(num_experts))
        if all(sibling in names for sibling in siblings):
            return ".".join([*parts[:at], "#", *parts[at + 1 :]])
    return None
