"""gpt: a decoder-only transformer with learned positions, pre-norm branches, and MoE layers or dense FFNs.

The row needs no torch. The forward pass does (`forward`, `ffn`, `linear`), and is imported when a stack is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpxfer.model.families import Family, StackedModel
from hpxfer.model.gpt.cost import flops_per_token, gpt_memory, logits_per_token
from hpxfer.model.gpt.layout import FORWARD_ROLES, gpt_parameters, gpt_roles
from hpxfer.spec import GPTModel
from hpxfer.trial import Trial

if TYPE_CHECKING:
    import torch

    from hpxfer.kernels.backend import Backend


def _build(trials: Sequence[Trial], device: torch.device, backend: Backend) -> StackedModel:
    from hpxfer.model.gpt.forward import build_gpt

    return build_gpt(trials, device, backend)


GPT = Family(
    name="gpt",
    section=GPTModel,
    roles=gpt_roles,
    parameters=gpt_parameters,
    flops_per_token=flops_per_token,
    memory=gpt_memory,
    logits_per_token=logits_per_token,
    build=_build,
    forward_roles=FORWARD_ROLES,
    weights="transformers",
)
