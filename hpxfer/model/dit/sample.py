"""Samples that a trained model draws: Euler's steps along its velocity, from noise at t = 0 to a sample at t = 1.

Letters: K trials, B samples, L blocks with experts, E experts; N numbers of a sample, patch by patch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpxfer.data import Data
from hpxfer.model.dit.flow import FlowData, patched, pictured
from hpxfer.model.dit.forward import build_dit
from hpxfer.model.draws import normals, untrained_bias
from hpxfer.spec import moe_blocks
from hpxfer.trial import Trial

KEY = "flow/samples"  # of the noise, which is the same for every trial
CPU = torch.device("cpu")


def euler(velocity: Callable[[Tensor], Tensor], noise_KBN: Tensor, class_KB: Tensor, steps: int) -> Tensor:
    """Return samples [K, B, N]: z grows from noise by v / steps at each step, with v at the middle of its time."""
    z, classes = noise_KBN, class_KB.unsqueeze(-1).to(noise_KBN.dtype)
    for step in range(steps):
        t = torch.full_like(classes, (step + 0.5) / steps)
        z = z + velocity(torch.cat([z, t, classes], dim=-1)) / steps
    return z


def first_noise(num_samples: int, size: int) -> Tensor:
    """Return the noise [1, B, N] from which every model starts."""
    return next(normals([KEY], num_samples * size, CPU, num_samples * size)).view(1, num_samples, size)


def draw_samples(
    trial: Trial, tensors: Mapping[str, tuple[Tensor, ...]], router_bias_LE: Tensor, data: Data, most: int, steps: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the first held-out samples, `most` at most, and as many of their classes that the trial draws.

    Both are [B, channels, side, side]. `tensors` are the weights of the trial by name, one per block or one.
    """
    assert isinstance(data, FlowData)
    inputs, classes = (part[:most] for part in next(data.samples.validation_batches()))
    shape, patch = data.shape, data.options.patch
    held_out = patched(inputs, shape, patch, channels_last=data.channels_last)
    model = build_dit([trial], CPU)
    weights = {name: tuple(copy.unsqueeze(0) for copy in copies) for name, copies in tensors.items()}
    bias = untrained_bias(trial, moe_blocks(trial.shape, trial.setting), trial.setting.steps)
    beside = None if bias is None else bias.unsqueeze(1)
    drawn = euler(
        lambda z: model.velocity(weights, router_bias_LE.unsqueeze(1), z, beside),
        first_noise(*held_out.shape),
        torch.from_numpy(classes).unsqueeze(0),
        steps,
    )
    return pictured(held_out, shape, patch), pictured(drawn[0].numpy(), shape, patch)
