"""user: the models of a user's own trainer, of which only the shapes are known.

The trainer builds, counts and trains them. So the row has no parameters and no cost, and asks tables for no role.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.model.families import Family, StackedModel
from hpxfer.model.parameters import Memory
from hpxfer.spec import UserModel
from hpxfer.trial import Trial

if TYPE_CHECKING:
    import torch

    from hpxfer.kernels.backend import Backend


def _build(trials: Sequence[Trial], device: torch.device, backend: Backend) -> StackedModel:
    raise HpxferError("model.family: user: hpxfer cannot build the model that your own trainer builds")


FAMILY = Family(
    name="user",
    section=UserModel,
    roles=lambda shape, options: (),
    parameters=lambda shape, setting: (),
    flops_per_token=lambda shape, setting: 0.0,
    memory=lambda shape, setting, cuda: Memory(parts={}),
    build=_build,
    data="user",
    row_multiple=1,
    precisions=("float32",),
    compiles=False,
)
