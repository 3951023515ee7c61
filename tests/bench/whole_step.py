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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_items import graphed, say
from products import permuted
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.clock import Job, interleaved, median
from hpxfer.bench.rates import LARGE, base_case, small_case
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


def moe_rows(x_MD: Tensor, up_EDH: Tensor, down_EHD: Tensor, gate_M1: Tensor, chosen_M: Tensor) -> Tensor:
    """Return a top-1 MoE layer by F.grouped_mm."""
    order_M = torch.argsort(chosen_M, stable=True)
    back_M = torch.argsort(order_M)
    load_E = (chosen_M.unsqueeze(1) == torch.arange(len(up_EDH), device=x_MD.device)).sum(0)
    ends_E = load_E.cumsum(0).to(torch.int32)
    return grouped_rows(x_MD, up_EDH, down_EHD, gate_M1, order_M, back_M, ends_E)


def grouped_rows(
    x_MD: Tensor, up_EDH: Tensor, down_EHD: Tensor, gate_M1: Tensor, order_M: Tensor, back_M: Tensor, ends_E: Tensor
) -> Tensor:
    rows = F.grouped_mm(permuted(x_MD, order_M, back_M), up_EDH.to(BF16), offs=ends_E)
    down = F.grouped_mm(F.gelu(rows), down_EHD.to(BF16), offs=ends_E)
    return permuted(down, back_M, order_M) * gate_M1.to(BF16)


def cross_entropy(h_TD: Tensor, readout_VD: Tensor, targets_T: Tensor) -> Tensor:
    """Return the loss of every token."""
    logits = h_TD @ readout_VD.to(BF16).T
    return F.cross_entropy(logits.float(), targets_T, reduction="none")


class Experts(nn.Module):
    """The weights of all experts of a layer."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        shape = trial.shape
        self.up = nn.Parameter(torch.empty(shape.num_experts, shape.width, shape.expert_width))
        self.down = nn.Parameter(torch.empty(shape.num_experts, shape.expert_width, shape.width))


class Plain(nn.Module):
    """The base model with float32 weights, computed in bfloat16."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        shape, setting = trial.shape, trial.setting
        self.heads, self.head_dim, self.width = shape.query_heads, shape.head_dim, shape.width
        self.embedding = nn.Embedding(setting.vocab_size, shape.width)
        self.position = nn.Parameter(torch.empty(setting.context, shape.width))
        square = lambda outer: nn.ParameterList(  # noqa: E731
            nn.Parameter(torch.empty(shape.width, outer)) for _ in range(shape.depth)
        )
        self.qkv, self.out, self.router = square(3 * shape.width), square(shape.width), square(shape.num_experts)
        self.experts = nn.ModuleList(Experts(trial) for _ in range(shape.depth))
        self.readout = nn.Parameter(torch.empty(setting.vocab_size, shape.width))
        self.register_buffer("bias", torch.zeros(shape.depth, shape.num_experts))
        self.register_buffer("load", torch.zeros(shape.depth, shape.num_experts))

    def block(self, index: int, x_BSD: Tensor) -> Tensor:
        size = x_BSD.shape
        h = F.layer_norm(x_BSD, size[-1:])
        q, k, v = (
            part.view(*size[:2], self.heads, self.head_dim).transpose(1, 2)
            for part in (h @ self.qkv[index].to(BF16)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.head_dim)
        x_BSD = x_BSD + y.transpose(1, 2).reshape(size) @ self.out[index].to(BF16)
        h_MD = F.layer_norm(x_BSD, size[-1:]).flatten(0, 1)
        gates = torch.sigmoid(h_MD.float() @ self.router[index])
        chosen_M = (gates.detach() + self.bias[index]).argmax(-1)
        experts = self.experts[index]
        y_MD = moe_rows(h_MD, experts.up, experts.down, gates.gather(1, chosen_M.unsqueeze(1)), chosen_M)
        with torch.no_grad():
            shares = (chosen_M.unsqueeze(1) == torch.arange(gates.shape[1], device=h.device)).float().mean(0)
            self.load[index] = shares
        return x_BSD + y_MD.view(size)

    def forward(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        x = (self.embedding(inputs_BS) + self.position).to(BF16)
        for index in range(len(self.experts)):
            x = self.block(index, x)
        h_TD, targets_T = F.layer_norm(x, x.shape[-1:]).flatten(0, 1), targets_BS.flatten()
        if hasattr(F, "linear_cross_entropy"):
            loss: Tensor = F.linear_cross_entropy(h_TD, self.readout.to(BF16), targets_T)
            return loss
        return cross_entropy(h_TD, self.readout, targets_T).mean()


class PlainStep:
    """A captured step of the plain way, on one batch."""

    def __init__(self, trial: Trial, weights: Any, inputs: Tensor, targets: Tensor) -> None:
        self.model = Plain(trial).cuda()
        with torch.no_grad():
            fill(self.model, weights)
        hps = trial.hps
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=hps.lr, betas=(hps.beta1, hps.beta2), eps=hps.eps, fused=True, capturable=True
        )
        self.compiled = torch.compile(self.model)
        self.given = inputs, targets
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


def fill(model: Plain, weights: Any) -> None:
    """Copy the weights of a stack of one trial."""
    one = {name: [copy[0] for copy in copies] for name, copies in weights.items()}
    model.embedding.weight.copy_(one["embedding"][0])
    model.position.copy_(one["position"][0])
    model.readout.copy_(one["readout"][0].T)
    for index in range(len(model.experts)):
        model.qkv[index].copy_(torch.cat([one[name][index] for name in ("attn_q", "attn_k", "attn_v")], 1))
        model.out[index].copy_(one["attn_out"][index])
        model.router[index].copy_(one["router"][index])
        model.experts[index].up.copy_(one["expert_in"][index])
        model.experts[index].down.copy_(one["expert_out"][index])


def torch_experts(x_MD, w_in, w_gate, w_out, gate_MA, groups, num_active, *, backend, **_):  # type: ignore[no-untyped-def]
    assert num_active == 1
    assert w_gate is None
    return grouped_rows(x_MD, w_in, w_out, gate_MA, groups.slot.long(), groups.row.long(), groups.ends)


def torch_head(h_KTD: Tensor, readout_KDV: Tensor, targets_KT: Tensor, *, backend: Any) -> Tensor:
    logits = torch.bmm(h_KTD, readout_KDV.to(BF16)).flatten(0, 1).float()
    return F.cross_entropy(logits, targets_KT.flatten(), reduction="none").view(targets_KT.shape)


def by_torch(function: Callable[..., Any], position: int | None = None) -> Callable[..., Any]:
    """Return the function with torch's backend, which it takes by position or as a keyword."""

    def called(*args: Any, **options: Any) -> Any:
        if position is not None:
            args = (*args[:position], TORCH, *args[position + 1 :])
        else:
            options["backend"] = TORCH
        return function(*args, **options)

    return called


def torch_embed(weight_KVD: Tensor, ids_KT: Tensor, backend: Any) -> Tensor:
    first_K1 = torch.arange(len(ids_KT), device=ids_KT.device).unsqueeze(1) * weight_KVD.shape[1]
    return F.embedding(ids_KT + first_K1, weight_KVD.flatten(0, 1))


@torch.compile(dynamic=True)
def torch_adamw(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    lr_K: Tensor,
    keep_K: Tensor,
    eps_K: Tensor,
    beta1_K: Tensor,
    beta2_K: Tensor,
    scale_K: Tensor,
    alive_K: Tensor,
) -> None:
    """Take the step of AdamW in place, as `hpxfer.kernels.adamw` does."""
    lr, keep, eps, beta1, beta2, scale, alive = (
        one.unsqueeze(1) for one in (lr_K, keep_K, eps_K, beta1_K, beta2_K, scale_K, alive_K)
    )
    m.mul_(beta1).add_(g)
    v.mul_(beta2).add_(g * g)
    p.mul_(keep).sub_(torch.where(alive, lr * m / (v.sqrt() * scale + eps), 0.0))


SWAPS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "experts": [(ffn, "experts", torch_experts)],
    "head": [(forward, "head_losses", torch_head)],
    "router": [(ffn, "router", by_torch(ffn.router))],
    "embedding": [(forward, "embed", torch_embed)],
    "norm": [(linear, "added_norm", by_torch(linear.added_norm, 4))],
    "heads": [(forward, "place_heads", by_torch(forward.place_heads))],
    "adamw": [(adamw, "adamw_", torch_adamw)],
}
# What a model runs: the nanoGPT has layer norms without gains and no rotations, which have no kernels.
BASE, MIXTRAL = ("experts", "head", "router", "embedding", "adamw"), ("experts", "router", "norm", "heads")
PRESET = Case(
    width=1024,
    depth=8,
    num_experts=8,
    num_active=1,
    expert_ratio=1,
    head_dim=128,
    vocab_size=50304,
    context=1024,
    batch_tokens=32768,
    steps=512,
    precision="bfloat16",
    like="mixtral",
)
# Case, trials at once, the kernels that are left out in turn, and whether the plain way is timed.
CASES: dict[str, tuple[Case, int, tuple[str, ...], bool]] = {
    "base": (base_case(32768), 1, BASE, True),
    "large": (replace(LARGE, batch_tokens=32768), 1, ("experts", "head"), True),
    "stack": (small_case(8192, 64), 64, BASE, True),
    "mixtral": (PRESET, 1, MIXTRAL, False),
}


@contextmanager
def swapped(*names: str) -> Iterator[None]:
    """Let torch's code stand for these kernels."""
    rows = [row for name in names for row in SWAPS[name]]
    before = [(module, name, getattr(module, name)) for module, name, _ in rows]
    for module, name, other in rows:
        setattr(module, name, other)
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


class Trained:
    """Captured steps of hpxfer's trainer, with torch's code for some kernels."""

    def __init__(self, members: tuple[Trial, ...], *without: str) -> None:
        with swapped(*without), switched(setup_for("cuda")):
            self.step = TrainStep(Stack(trials=members), setup_for("cuda"))
        self.number = 0

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
        inputs, targets = (ids[0].clone() for ids in own.step.state.batch(0))
        weights = {key: [copy.clone() for copy in copies] for key, copies in own.step.state.weights.items()}
        say(case=name, way="kernels", loss=float(own()), gpu=torch.cuda.get_device_name(), torch=torch.__version__)
        for way in (*(["plain"] if with_plain else []), *without):
            try:
                if way == "plain":
                    other: Any = PlainStep(members[0], weights, inputs, targets)
                    loss = float(other())
                    run: Callable[[], object] = graphed(other)
                else:
                    other = Trained(members, way)
                    loss, run = float(other()), other
                jobs = {key: Job(run=repeated(call), count=STEPS) for key, call in (("own", own), ("other", run))}
                times = interleaved(jobs, rounds=ROUNDS, device=torch.device("cuda"))
                ms = {key: 1e3 * median(times, key) for key in jobs}
                ratios = sorted(b / a for a, b in zip(times["own"], times["other"], strict=True))
                say(
                    case=name,
                    trials=count,
                    way=way if way == "plain" else f"-{way}",
                    loss=loss,
                    own_ms=ms["own"],
                    ms=ms["other"],
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


def repeated(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(STEPS):
            call()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python tests/bench/whole_step.py", description=compare.__doc__)
    parser.add_argument("cases", nargs="+", choices=CASES)
    for name in parser.parse_args().cases:
        compare(name)


if __name__ == "__main__":
    main()
