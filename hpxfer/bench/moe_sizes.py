"""The MoE layers whose latency is measured along two axes, beside a dense FFN of equal active width. It needs no torch.

The sizes of a GPU are those of 2605.23893, Fig. 7. Those of a CPU are 1/16 of them in every width, with as many active
experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.plan.speeds import Kind
from hpxfer.scaling.shape import Shape

Axis = Literal["capacity", "granularity"]
AXES: tuple[Axis, ...] = get_args(Axis)


@dataclass(frozen=True, kw_only=True)
class MoeSize:
    """One layer of one axis. Along capacity the experts become more. Along granularity they become more and smaller,
    and a token uses more of them.
    """

    axis: Axis
    device: Kind
    tokens: int
    width: int
    num_experts: int
    num_active: int
    expert_width: int

    @property
    def key(self) -> str:
        """The name of its row."""
        return f"{self.device}-{self.axis}-{self.num_experts if self.axis == 'capacity' else self.num_active}"

    @property
    def what(self) -> str:
        """The row in words."""
        active = self.num_active * self.expert_width
        changes = f"E{self.num_experts}A{self.num_active} h{self.expert_width}"
        return f"{self.axis}: {changes} over a dense SwiGLU FFN of width {active}, forward and backward"

    def shape(self, *, dense: bool = False) -> Shape:
        """Return the shape of a model with this layer, or with the dense FFN of equal active width."""
        if dense:
            return Shape(
                width=self.width, depth=1, head_dim=self.width, dense_width=self.num_active * self.expert_width
            )
        return Shape(
            width=self.width,
            depth=1,
            head_dim=self.width,
            num_experts=self.num_experts,
            num_active=self.num_active,
            expert_width=self.expert_width,
        )


_CAPACITY: dict[Kind, tuple[int, ...]] = {"cpu": (8, 16, 32, 64, 128), "cuda": (8, 16, 32, 64, 128, 256)}
_ACTIVE: dict[Kind, tuple[int, ...]] = {"cpu": (2, 4, 8, 16, 32), "cuda": (2, 4, 8, 16, 32, 64)}
_TOKENS: dict[Kind, int] = {"cpu": 1024, "cuda": 40960}
_WIDTH: dict[Kind, int] = {"cpu": 256, "cuda": 4096}
_ACTIVE_AT_CAPACITY, _EXPERTS_PER_ACTIVE, _ACTIVE_RATIO = 8, 8, 4  # k; E / k; active features per feature of the stream


def sizes(device: Kind) -> tuple[MoeSize, ...]:
    """Return the layers of both axes on a kind of device."""
    width, tokens = _WIDTH[device], _TOKENS[device]

    def size(axis: Axis, num_experts: int, num_active: int) -> MoeSize:
        return MoeSize(
            axis=axis,
            device=device,
            tokens=tokens,
            width=width,
            num_experts=num_experts,
            num_active=num_active,
            expert_width=_ACTIVE_RATIO * width // num_active,
        )

    return (
        *(size("capacity", count, _ACTIVE_AT_CAPACITY) for count in _CAPACITY[device]),
        *(size("granularity", _EXPERTS_PER_ACTIVE * count, count) for count in _ACTIVE[device]),
    )


def keys_along(axis: str, device: Kind) -> tuple[str, ...]:
    """Return the names of the rows of one axis. Raise HpxferError for an unknown one."""
    if axis not in AXES:
        raise HpxferError(f"--axis: must be capacity or granularity, got {shown(axis)}; {nearest(axis, AXES)}")
    return tuple(size.key for size in sizes(device) if size.axis == axis)
