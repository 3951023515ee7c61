"""What a seed decides in a model: the initial parameters, the biases of routers, and the choice among equal experts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from hpxfer.model.flat import FlatLayout
from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.roles import ROLES

# One draw covers the router noise of this many steps.
NOISE_STEPS = 16
EXPERT_ROLES = ("expert_in", "expert_gate", "expert_out")
# The std of `fixed_bias`, in units of the router's logits. It changes a sigmoid gate by 0.005: as far as one step of
# the balancing rule moves a score at its default rate of 0.01 and a load that is 0.5 off. Ids stand for this number.
FIXED_BIAS_STD = 0.02


def draw(
    layout: FlatLayout, seeds: Sequence[int], stds: Sequence[dict[str, float]], tied: Sequence[bool] = ()
) -> torch.Tensor:
    """Return the initial vector, float32 on the CPU: gains are one, matrices normal with the std of their role.

    `stds[k]` maps a role to its init std in trial k. Where `tied[k]`, all experts of a layer start from the same draw
    and train independently afterwards (MSSP, regime III). A draw depends only on the seed of the trial, the name of
    the parameter and its copy. It is therefore the same whatever is stacked beside it.
    """
    flat = torch.zeros(layout.numel)
    views = layout.weights(flat)
    for spec in layout.parameters:
        for layer in range(spec.layers):
            for trial, seed in enumerate(seeds):
                out = views[spec.name][layer][trial]
                std = stds[trial][spec.role]
                if ROLES[spec.role] == "ones":
                    out.fill_(1.0)
                elif std:
                    shared = bool(tied) and tied[trial] and spec.role in EXPERT_ROLES
                    out.copy_(_normal(spec, f"{seed}/{spec.name}/{layer}", shared=shared))
                    out.mul_(std)
    return flat


def router_noise(seeds: Sequence[int], blocks: Sequence[int], num_experts: int, chunk: int) -> torch.Tensor:
    """Return standard normal b_t [NOISE_STEPS, L, U, E], float32 on the CPU, for L MoE blocks and U seeds.

    This is the shared router-bias schedule of 2601-router-freeze, Algorithm 1, for the steps from chunk * NOISE_STEPS
    on. A draw depends only on the seed, the block and the step. It is therefore the same at every width.
    """
    out = torch.empty(NOISE_STEPS, len(blocks), len(seeds), num_experts)
    for layer, block in enumerate(blocks):
        for row, seed in enumerate(seeds):
            generator = _generator(f"{seed}/b_t/{block}/{chunk}")
            out[:, layer, row] = torch.randn(NOISE_STEPS, num_experts, generator=generator)
    return out


def fixed_bias(seeds: Sequence[int], blocks: Sequence[int], num_experts: int) -> torch.Tensor:
    """Return the bias [L, U, E] of the routers of L MoE blocks for U seeds, float32 on the CPU. It is never trained.

    A draw depends only on the seed, the block and the expert. It is therefore the same at every width, and a model with
    more experts has the same first ones.
    """
    draws = [
        torch.randn((), generator=_generator(f"{seed}/fixed_bias/{block}/{expert}"))
        for block in blocks
        for seed in seeds
        for expert in range(num_experts)
    ]
    return FIXED_BIAS_STD * torch.stack(draws).view(len(blocks), len(seeds), num_experts)


def tie_keys(seeds: Sequence[int], blocks: Sequence[int]) -> torch.Tensor:
    """Return the keys [L, U], int32 from 0, of the random order in which L MoE blocks choose among equal experts."""
    keys = [[_number(f"{seed}/ties/{block}") >> 32 for seed in seeds] for block in blocks]
    return torch.tensor(keys, dtype=torch.int32).view(len(blocks), len(seeds))


def _normal(spec: ParameterSpec, key: str, *, shared: bool) -> torch.Tensor:
    """Return standard normal numbers of the parameter's size. If `shared`, return one expert's, for all experts."""
    size = spec.size[1:] if shared else spec.size
    return torch.randn(torch.Size(size).numel(), generator=_generator(key)).view(size)


def _generator(key: str) -> torch.Generator:
    return torch.Generator().manual_seed(_number(key))


def _number(key: str) -> int:
    """Return a number of 63 bits that looks random."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
