"""mlp: a mixture of MLPs that classifies samples, as in MSSP (P.1) and Why Routers Freeze (Def. 1).

    h0 = act(W1 x)      per block: psi = Q h (+ b), phi = gate(beta psi), h' = [h +] c sum_i phi_i expert_i(h)
    f = W4 h_L          expert(h) = W3 act(W2 h), or act(W3 h) with a single matrix

The row needs no torch. The forward and the backward pass do (`stack`), and are imported when a stack is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpxfer.model.families import Family, StackedModel
from hpxfer.model.mlp.layout import (
    FORWARD_ROLES,
    flops_per_sample,
    memory,
    parameters,
    problems,
    roles,
)
from hpxfer.spec import MLPModel
from hpxfer.trial import Trial

if TYPE_CHECKING:
    import torch

    from hpxfer.kernels.backend import Backend


def _build(trials: Sequence[Trial], device: torch.device, backend: Backend) -> StackedModel:
    from hpxfer.model.mlp.stack import build_mlp

    return build_mlp(trials, device)


FAMILY = Family(
    name="mlp",
    section=MLPModel,
    roles=roles,
    parameters=parameters,
    flops_per_token=flops_per_sample,
    memory=memory,
    build=_build,
    data="samples",
    problems=problems,
    row_multiple=1,
    precisions=("float32",),
    compiles=False,
    has_pieces=False,
    regularizes=False,
    forward_roles=FORWARD_ROLES,
    needs_experts=True,
)
