"""What a seed decides: the parameters a trial starts from, and the biases that the router-bias schedule adds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from hpxfer.model.flat import Flat
from hpxfer.model.layout import Tensor
from hpxfer.scaling.roles import ROLES

# Steps whose router biases are one draw.
NOISE_STEPS = 16
EXPERT_ROLES = ("expert_in", "expert_gate", "expert_out")


def draw(
    layout: Flat, seeds: Sequence[int], stds: Sequence[dict[str, float]], tied: Sequence[bool] = ()
) -> torch.Tensor:
    """Return the initial vector, float32 on the CPU: gains at one, matrices normal with the std of their role.

    `stds[k]` maps a role to its init std in trial k; where `tied[k]`, all experts of a layer start from one draw
    (MSSP, regime III; the matrices are independent afterwards). A tensor's draw depends on its trial's seed, its name
    and its layer alone, so it is the same whatever else is stacked.
    """
    flat = torch.zeros(layout.numel)
    views = layout.weights(flat)
    for tensor in layout.tensors:
        for layer in range(tensor.layers):
            for trial, seed in enumerate(seeds):
                out = views[tensor.name][layer][trial]
                std = stds[trial][tensor.role]
                if ROLES[tensor.role] == "ones":
                    out.fill_(1.0)
                elif std:
                    one_draw = bool(tied) and tied[trial] and tensor.role in EXPERT_ROLES
                    out.copy_(_normal(tensor, f"{seed}/{tensor.name}/{layer}", one_draw=one_draw))
                    out.mul_(std)
    return flat


def router_noise(seeds: Sequence[int], blocks: Sequence[int], num_experts: int, chunk: int) -> torch.Tensor:
    """Return standard normal b_t [NOISE_STEPS, L, U, E], float32 on the CPU: of each MoE block and seed, for a chunk.

    The shared router-bias schedule of 2601-router-freeze, Algorithm 1, for the steps from chunk * NOISE_STEPS on: the
    draw depends on the seed, the block and the step alone, so it is the same at every width.
    """
    out = torch.empty(NOISE_STEPS, len(blocks), len(seeds), num_experts)
    for layer, block in enumerate(blocks):
        for row, seed in enumerate(seeds):
            generator = _generator(f"{seed}/b_t/{block}/{chunk}")
            out[:, layer, row] = torch.randn(NOISE_STEPS, num_experts, generator=generator)
    return out


def _normal(tensor: Tensor, key: str, *, one_draw: bool) -> torch.Tensor:
    """Return standard normal numbers of the tensor's size, or of one expert's, to be copied to all."""
    size = tensor.size[1:] if one_draw else tensor.size
    return torch.randn(torch.Size(size).numel(), generator=_generator(key)).view(size)


def _generator(key: str) -> torch.Generator:
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
    return torch.Generator().manual_seed(number)
