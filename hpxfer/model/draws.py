"""What a seed decides in a model: the initial parameters, the biases of routers, and the choice among equal experts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import groupby

import torch

from hpxfer.model.counter import CHUNK, normals
from hpxfer.model.flat import FlatLayout
from hpxfer.scaling.roles import ROLES
from hpxfer.spec.ties import FIXED_BIAS_STD
from hpxfer.trial import Trial

CPU = torch.device("cpu")
# One draw covers the router noise of this many steps.
NOISE_STEPS = 16
# `counter` computes at least so many numbers of a trial at once, however many trials there are.
LEAST = 2**10
EXPERT_ROLES = ("expert_in", "expert_gate", "expert_out")


def draw(
    layout: FlatLayout,
    seeds: Sequence[int],
    stds: Sequence[dict[str, float]],
    tied: Sequence[bool] = (),
    *,
    method: str = "generator",
    device: torch.device = CPU,
) -> torch.Tensor:
    """Return the initial vector on the device, float32: gains are one, matrices normal with the std of their role.

    `stds[k]` maps a role to its init std in trial k. Where `tied[k]`, all experts of a layer start from the same draw
    and train independently afterwards (MSSP, regime III). A draw depends only on the seed of the trial, the name of
    the parameter and its copy. It is therefore the same whatever is stacked beside it, and on every device.

    `method` is a sweep's `model.init_draw`. `generator` draws one number after the other on one thread of the CPU, with
    torch's generator. `counter` computes all numbers of all trials side by side on the device. Nothing else that a
    seed decides is many numbers, so everything else has one method: `router_noise`, `fixed_bias` and `tie_keys` here,
    and the order of the data.
    """
    flat = torch.zeros(layout.numel, device=CPU if method == "generator" else device)
    views = layout.weights(flat)
    fill = _FILLS[method]
    for spec in layout.parameters:
        kinds = [_kind(spec.role, stds[k][spec.role], bool(tied) and tied[k]) for k in range(len(seeds))]
        for copy, out in enumerate(views[spec.name]):
            keys = [f"{seed}/{spec.name}/{copy}" for seed in seeds]
            for kind, run in groupby(range(len(seeds)), kinds.__getitem__):
                trials = list(run)
                part = out[trials[0] : trials[-1] + 1]
                if kind == "ones":
                    part.fill_(1.0)
                elif kind != "zeros":
                    sharing = part.shape[1] if kind == "tied" else 1
                    fill(
                        part.view(len(trials), sharing, -1),
                        [keys[k] for k in trials],
                        [stds[k][spec.role] for k in trials],
                    )
    return flat.to(device)


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


def bias_std(trial: Trial) -> float:
    """Return the std of the router bias that a trial draws by `router_noise` and never trains. It is 0 without one."""
    mlp = trial.setting.mlp
    own = mlp.router_bias_std if mlp.router_bias in ("fixed", "schedule") else 0.0
    return own or trial.structure().router_bias_std


def untrained_bias(trial: Trial, blocks: Sequence[int], step: int) -> torch.Tensor | None:
    """Return what is added to the logits of a trial's routers at a step, [L, E], or None if nothing is.

    Validation is at step = steps. A learned bias is a parameter, and not part of this.
    """
    parts, count = [], trial.shape.num_experts
    if blocks and (std := bias_std(trial)):
        chunk, at = divmod(0 if trial.setting.mlp.router_bias == "fixed" else step, NOISE_STEPS)
        parts.append(router_noise([trial.seed], blocks, count, chunk)[at, :, 0] * std)
    if blocks and trial.setting.ties == "fixed_bias":
        parts.append(fixed_bias([trial.seed], blocks, count)[:, 0])
    return torch.stack(parts).sum(0) if parts else None


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


def _kind(role: str, std: float, tied: bool) -> str:
    """Return how a trial's copies of a role start: `ones`, `zeros`, or normal, with `tied` or `own` draws."""
    if ROLES[role] == "ones":
        return "ones"
    if not std:
        return "zeros"
    return "tied" if tied and role in EXPERT_ROLES else "own"


def _fill_by_generator(out_KEN: torch.Tensor, keys: Sequence[str], stds: Sequence[float]) -> None:
    """Write the numbers of each trial's generator, the same for all E."""
    for out_EN, key, std in zip(out_KEN, keys, stds, strict=True):
        out_EN.copy_(torch.randn(out_EN.shape[1], generator=_generator(key)))
        out_EN.mul_(std)


def _fill_by_counter(out_KEN: torch.Tensor, keys: Sequence[str], stds: Sequence[float]) -> None:
    """Write the numbers of each trial's stream, the same for all E. Trials of one seed share the work."""
    device = out_KEN.device
    rows = {key: row for row, key in enumerate(dict.fromkeys(keys))}
    rows_K = torch.tensor([rows[key] for key in keys], device=device)
    stds_K = torch.tensor(stds, device=device)
    begin = 0
    for values_UN in normals(list(rows), out_KEN.shape[2], device, max(LEAST, CHUNK[device.type] // len(keys))):
        end = begin + values_UN.shape[1]
        scaled_KN = values_UN.index_select(0, rows_K).mul_(stds_K.unsqueeze(1))
        out_KEN[:, :, begin:end] = scaled_KN.unsqueeze(1)
        begin = end


_FILLS: dict[str, Callable[[torch.Tensor, Sequence[str], Sequence[float]], None]] = {
    "generator": _fill_by_generator,
    "counter": _fill_by_counter,
}


def _generator(key: str) -> torch.Generator:
    return torch.Generator().manual_seed(_number(key))


def _number(key: str) -> int:
    """Return a number of 63 bits that looks random."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
