"""Measure a whole training step on a GPU beside the same step in torch.compile: `python tests/bench/whole_step.py`.

A kernel is worth its lines if the step with it is at least 1.2 times as fast as without. The base trial (width
512, 8 blocks, 4 experts of which 1 is active, vocabulary 50304, 32k tokens a step, bfloat16) is trained

    plain     as a torch module: torch.compile, F.grouped_mm, SDPA, compiled cross entropy (F.linear_cross_entropy where
              torch has it), fused AdamW; the whole step is one CUDA graph
    kernels   by hpxfer with all its kernels
    -NAME     by hpxfer with torch's compiled code in place of one kernel

Steps are timed in turns. Each number is a JSON line. The losses of the first step say that all compute the same.
"""

from __future__ import annotations

import argparse
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from gpu_items import graphed, say
from products import permuted, repeated
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.clock import Job, interleaved, median
from hpxfer.bench.rates import BASE, LARGE, base_case, small_case
from hpxfer.kernels import adamw
from hpxfer.kernels.backend import TORCH
from hpxfer.model.gpt import ffn, forward, linear
from hpxfer.train.device import setup_for, switched
from hpxfer.train.step import TrainStep
from hpxfer.trial import Trial
from hpxfer.trial.stack import Stack

ROUNDS, STEPS = 7, 10
_MOST_STEPS = 1024  # the trainer has room for the losses of so many steps
BF16 = torch.bfloat16


def moe_rows(
    x_MD: Tensor, up_EDH: Tensor, down_EHD: Tensor, gate_M1: Tensor, order_M: Tensor, back_M: Tensor, ends_E: Tensor
) -> Tensor:
    """Return a top-1 MoE layer by F.grouped_mm."""
    rows = F.grouped_mm(permuted(x_MD, order_M, back_M), up_EDH.to(BF16), offs=ends_E)
    down = F.grouped_mm(F.gelu(rows), down_EHD.to(BF16), offs=ends_E)
    return permuted(down, back_M, order_M) * gate_M1.to(BF16)


class Plain(nn.Module):
    """The base model with float32 weights, computed in bfloat16. Its weights are copies of a stack's first trial."""

    def __init__(self, trial: Trial, weights: Any) -> None:
        super().__init__()
        shape = trial.shape
        self.heads, self.head_dim, self.depth = shape.query_heads, shape.head_dim, shape.depth
        own = {name: [copy[0] for copy in copies] for name, copies in weights.items()}
        own["qkv"] = [torch.cat(parts, 1) for parts in zip(*(own.pop(f"attn_{part}") for part in "qkv"), strict=True)]
        own["readout"] = [own["readout"][0].T]
        for name, copies in own.items():
            setattr(self, name, nn.ParameterList(nn.Parameter(copy.detach().contiguous().clone()) for copy in copies))
        self.register_buffer("bias", torch.zeros(shape.depth, shape.num_experts))
        self.register_buffer("load", torch.zeros(shape.depth, shape.num_experts))

    def block(self, index: int, x_BSD: Tensor) -> Tensor:
        size, qkv = x_BSD.shape, F.layer_norm(x_BSD, x_BSD.shape[-1:]) @ self.qkv[index].to(BF16)
        q, k, v = (part.view(*size[:2], self.heads, self.head_dim).transpose(1, 2) for part in qkv.chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.head_dim)
        x_BSD = x_BSD + y.transpose(1, 2).reshape(size) @ self.attn_out[index].to(BF16)
        h_MD = F.layer_norm(x_BSD, size[-1:]).flatten(0, 1)
        gates = torch.sigmoid(h_MD.float() @ self.router[index])
        chosen_M1 = (gates.detach() + self.bias[index]).argmax(-1, keepdim=True)
        order_M = torch.argsort(chosen_M1.flatten(), stable=True)
        load_E = (chosen_M1 == torch.arange(gates.shape[1], device=x_BSD.device)).sum(0)
        given = order_M, torch.argsort(order_M), load_E.cumsum(0).to(torch.int32)
        y_MD = moe_rows(h_MD, self.expert_in[index], self.expert_out[index], gates.gather(1, chosen_M1), *given)
        with torch.no_grad():
            self.load[index] = load_E / len(h_MD)
        return x_BSD + y_MD.view(size)

    def forward(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        x = (F.embedding(inputs_BS, self.embedding[0]) + self.position[0]).to(BF16)
        for index in range(self.depth):
            x = self.block(index, x)
        h_TD, readout_VD = F.layer_norm(x, x.shape[-1:]).flatten(0, 1), self.readout[0].to(BF16)
        if hasattr(F, "linear_cross_entropy"):
            return F.linear_cross_entropy(h_TD, readout_VD, targets_BS.flatten())
        return F.cross_entropy((h_TD @ readout_VD.T).float(), targets_BS.flatten())


class PlainStep:
    """A captured step of the plain way, on one batch."""

    def __init__(self, trial: Trial, weights: Any, inputs: Tensor, targets: Tensor) -> None:
        self.model, hps, self.given = Plain(trial, weights).to(inputs.device), trial.hps, (inputs, targets)
        given = {"lr": hps.lr, "betas": (hps.beta1, hps.beta2), "eps": hps.eps}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **given, fused=True, capturable=inputs.is_cuda)
        self.compiled = torch.compile(self.model)
        self.rate, self.kappa = hps.router_bias_lr, trial.shape.kappa

    def __call__(self) -> Tensor:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
            loss: Tensor = self.compiled(*self.given)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            self.model.bias -= self.rate * (self.model.load - self.kappa)
        return loss.detach()


def torch_experts(x_MD, w_in, w_gate, w_out, gate_MA, groups, num_active, *, backend, **_):  # type: ignore[no-untyped-def]
    assert num_active == 1
    assert w_gate is None
    return moe_rows(x_MD, w_in, w_out, gate_MA, groups.slot.long(), groups.row.long(), groups.ends)


def torch_head(h_KTD: Tensor, readout_KDV: Tensor, targets_KT: Tensor, *, backend: Any) -> Tensor:
    logits = torch.bmm(h_KTD, readout_KDV.to(BF16)).flatten(0, 1).float()
    return F.cross_entropy(logits, targets_KT.flatten(), reduction="none").view(targets_KT.shape)


def by_torch(function: Callable[..., Any], position: int | None = None) -> Callable[..., Any]:
    """Return the function with torch's backend, which it takes by position or as a keyword."""

    def called(*args: Any, **options: Any) -> Any:
        if position is None:
            return function(*args, **{**options, "backend": TORCH})
        return function(*args[:position], TORCH, *args[position + 1 :], **options)

    return called


def torch_embed(weight_KVD: Tensor, ids_KT: Tensor, backend: Any) -> Tensor:
    first_K1 = torch.arange(len(ids_KT), device=ids_KT.device).unsqueeze(1) * weight_KVD.shape[1]
    return F.embedding(ids_KT + first_K1, weight_KVD.flatten(0, 1))


@torch.compile(dynamic=True)
def torch_adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor, **given_K: Tensor) -> None:
    """Take the step of AdamW in place, as `hpxfer.kernels.adamw` does."""
    names = ("lr_K", "keep_K", "eps_K", "beta1_K", "beta2_K", "scale_K", "alive_K")
    lr, keep, eps, beta1, beta2, scale, alive = (given_K[name].unsqueeze(1) for name in names)
    m.mul_(beta1).add_(g)
    v.mul_(beta2).add_(g * g)
    p.mul_(keep).sub_(torch.where(alive, lr * m / (v.sqrt() * scale + eps), 0.0))


SWAPS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "experts": (ffn, "experts", torch_experts),
    "head": (forward, "head_losses", torch_head),
    "router": (ffn, "router", by_torch(ffn.router)),
    "embedding": (forward, "embed", torch_embed),
    "norm": (linear, "added_norm", by_torch(linear.added_norm, 4)),
    "heads": (forward, "place_heads", by_torch(forward.place_heads)),
    "adamw": (adamw, "adamw_", torch_adamw),
}
# What a model runs: the nanoGPT has layer norms without gains and no rotations, which have no kernels.
NANOGPT, MIXTRAL = ("experts", "head", "router", "embedding", "adamw"), ("experts", "router", "norm", "heads")
PRESET = replace(BASE, width=1024, num_experts=8, head_dim=128, like="mixtral")
# Case, trials at once, the kernels that are left out in turn, and whether the plain way is timed.
CASES: dict[str, tuple[Case, int, tuple[str, ...], bool]] = {
    "base": (base_case(32768), 1, NANOGPT, True),
    "large": (replace(LARGE, batch_tokens=32768), 1, ("experts", "head"), True),
    "stack": (small_case(8192, 64), 64, NANOGPT, True),
    "mixtral": (PRESET, 1, MIXTRAL, False),
}


class Trained:
    """Captured steps of hpxfer's trainer, with torch's code for some kernels."""

    def __init__(self, members: tuple[Trial, ...], *without: str, device: str = "cuda") -> None:
        setup, self.number = setup_for(device), 0
        with ExitStack() as stack:
            for name in without:
                stack.enter_context(mock.patch.object(*SWAPS[name]))
            stack.enter_context(switched(setup))
            self.step = TrainStep(Stack(trials=members), setup)

    def __call__(self) -> Tensor:
        output, grads = self.step.gradients(self.number % 32)
        self.step.update(output, grads)
        self.number += 1
        return output.losses_KT.detach().mean()


def compare(name: str) -> None:
    """Print the milliseconds of a step of each way, and of hpxfer's in the same rounds."""
    case, count, without, with_plain = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        members = trials(replace(case, precision="bfloat16", steps=_MOST_STEPS), count, Path(folder))
        own = Trained(members)
        batch = [ids[0].clone() for ids in own.step.state.batch(0)]
        weights = {key: [copy.clone() for copy in copies] for key, copies in own.step.state.weights.items()}
        say(case=name, way="kernels", loss=float(own()), gpu=torch.cuda.get_device_name(), torch=torch.__version__)
        for way in (*(["plain"] if with_plain else []), *without):
            try:
                other: Any = PlainStep(members[0], weights, *batch) if way == "plain" else Trained(members, way)
                loss = float(other())
                run = graphed(other) if way == "plain" else other
                jobs = {
                    key: Job(run=repeated(call, STEPS), count=STEPS) for key, call in (("own", own), ("other", run))
                }
                times = interleaved(jobs, rounds=ROUNDS, device=torch.device("cuda"))
                ratios = sorted(b / a for a, b in zip(times["own"], times["other"], strict=True))
                say(
                    case=name,
                    trials=count,
                    way=way if way == "plain" else f"-{way}",
                    loss=loss,
                    own_ms=1e3 * median(times, "own"),
                    ms=1e3 * median(times, "other"),
                    kernels_over_it=ratios[len(ratios) // 2],
                    least=ratios[0],
                    most=ratios[-1],
                    peak_gib=torch.cuda.max_memory_reserved() / 2**30,
                )
            except Exception as error:
                traceback.print_exc()
                say(case=name, way=way, error=f"{type(error).__name__}: {str(error)[:300]}")
            other = run = None
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tests/bench/whole_step.py", description=compare.__doc__)
    parser.add_argument("cases", nargs="+", choices=CASES)
    for name in parser.parse_args().cases:
        compare(name)


if __name__ == "__main__":
    main()
