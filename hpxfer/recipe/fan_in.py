"""Fan-in: how many numbers the matrix in a tensor reads, from the tensor and its module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpxfer.scaling.shape import Shape

if TYPE_CHECKING:
    import torch


def fan_in_of(role: str, size: tuple[int, ...], module: torch.nn.Module, name: str, target: Shape) -> int | None:
    """Return the fan-in of a tensor of this role, or None if the tensor does not show it.

    A linear layer shows it. Of other tensors only the output matrix of attention does: one of its two dimensions is the
    width, and the other one is heads x head_dim.
    """
    from torch import nn

    if name == "weight" and len(size) == 2:
        if isinstance(module, nn.Linear):
            return size[1]
        if type(module).__name__ == "Conv1D":  # of transformers, [in, out]
            return size[0]
    if role == "attn_out" and len(size) == 2 and target.width in size:
        return size[0] * size[1] // target.width
    return None
