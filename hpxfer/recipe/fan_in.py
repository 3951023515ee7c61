"""Fan-in: how many numbers the matrix in a tensor reads, from the tensor and its module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.recipe.wrappers import class_of
from hpxfer.scaling.shape import Shape

if TYPE_CHECKING:
    import torch


def fan_in_of(role: str, size: tuple[int, ...], module: torch.nn.Module, name: str, target: Shape) -> int | None:
    """Return the fan-in of a tensor of this role, or None if the tensor does not show it.

    A linear layer shows it. Of other tensors only the output matrix of attention does: it has the width, and either
    heads x head_dim or these two apart. All layers may share the tensor, with the depth in front.
    """
    from torch import nn

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
