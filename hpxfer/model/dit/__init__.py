"""dit: a diffusion transformer that is trained by flow matching, with experts or dense FFNs.

    z = t x + (1 - t) e        a sample x and noise e of its size; the target is the velocity u = x - e
    c = time(t) + label        the condition, from which every block has shifts, scales and gates (AdaLN)
    loss of a sample           the mean of (v - u)^2

Source: SiT (arXiv 2401.08740) for the interpolant and the target, DiT (arXiv 2212.09748) for the block, 2605.23893 for
experts, gated attention and what is measured, arXiv 2505.15270 for the rows of the condition.

The row needs no torch. The forward pass (`forward`), the draws of time and noise (`flow`) and those of samples
(`sample`) do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpxfer.model.dit.cost import flops_per_sample, memory
from hpxfer.model.dit.layout import FORWARD_ROLES, parameters, roles
from hpxfer.model.dit.rules import problems
from hpxfer.model.dit.section import DiTModel, num_tokens
from hpxfer.model.families import Family, StackedModel
from hpxfer.trial import Setting, Trial

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from hpxfer.data import Data
    from hpxfer.kernels.backend import Backend


def _build(trials: Sequence[Trial], device: torch.device, backend: Backend) -> StackedModel:
    from hpxfer.model.dit.forward import build_dit

    return build_dit(trials, device, backend)


def _batches(setting: Setting, data: Data) -> Data:
    from hpxfer.model.dit.flow import flow_of

    return flow_of(setting, data)


def _draw_samples(
    trial: Trial,
    tensors: Mapping[str, tuple[torch.Tensor, ...]],
    router_bias: torch.Tensor,
    data: Data,
    most: int,
    steps: int,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    from hpxfer.model.dit.sample import draw_samples

    return draw_samples(trial, tensors, router_bias, data, most, steps)


FAMILY = Family(
    name="dit",
    section=DiTModel,
    roles=roles,
    parameters=parameters,
    flops_per_token=flops_per_sample,
    memory=memory,
    build=_build,
    data="samples",
    batches=_batches,
    tokens_of_row=num_tokens,
    problems=problems,
    draw_samples=_draw_samples,
    forward_roles=FORWARD_ROLES,
)
