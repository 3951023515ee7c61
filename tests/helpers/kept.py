"""What a forward pass on Triton's kernels keeps, by tensors without data: its operations say what they would return."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hpxfer.kernels.backend import Backend
from hpxfer.model.families import FAMILIES
from hpxfer.model.flat import FlatLayout
from hpxfer.spec import moe_blocks
from hpxfer.trial import Trial

TRITON = Backend(name="triton", reason="a test", strict=False)


def kept_bytes(trials: Sequence[Trial], batch: Callable[[], tuple[Tensor, Tensor]]) -> int:
    """Return the bytes that the forward pass keeps for the backward pass, the parameters themselves left out.

    `batch` makes the inputs and targets.
    """
    shape, setting = trials[0].shape, trials[0].setting
    family = FAMILIES.get(setting.family)
    layout = FlatLayout(parameters=family.parameters(shape, setting), num_trials=len(trials))
    model = family.build(trials, torch.device("cpu"), TRITON)
    kept: dict[int, torch.UntypedStorage] = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        flat = torch.empty(layout.numel)
        bias = torch.zeros(len(moe_blocks(shape, setting)), len(trials), shape.num_experts)
        inputs, targets = batch()

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(layout.leaves(flat), bias, inputs, targets)
        kept.pop(flat.untyped_storage()._cdata, None)
        assert output.losses_KT.shape == (len(trials), setting.batch_tokens)
    return sum(storage.nbytes() for storage in kept.values())
