"""The plain way to train the model of `like: mixtral`: an nn.Module, one trial at a time, as in `hpxfer.bench.plain`.

It has RMS norms with gains, RoPE, fewer heads of keys than of queries, SwiGLU experts in a loop, softmax gates that are
renormalized over the active experts, and the balancing loss. A test shows that its losses are those of the stacked
trainer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpxfer.data.batches import Batch
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.shape import Shape
from hpxfer.train.state import TrainState
from hpxfer.trial import Setting, Trial


class Attention(nn.Module):
    """Causal self-attention with RoPE. Several heads of queries share a head of keys and values."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, setting: Setting) -> None:
        super().__init__()
        self.sizes = [shape.attention_width, shape.kv_width, shape.kv_width]
        self.head_dim = shape.head_dim
        self.qkv = nn.Linear(shape.width, sum(self.sizes), bias=False)
        self.out = nn.Linear(shape.attention_width, shape.width, bias=False)
        frequencies = setting.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angles = torch.outer(torch.arange(setting.context), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch [B, S, D]."""
        batch, context, _ = x.shape
        parts = self.qkv(x).split(self.sizes, dim=-1)
        q, k, v = (part.view(batch, context, -1, self.head_dim).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(self._turned(q), self._turned(k), v, is_causal=True, enable_gqa=True)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, context, -1))
        return out

    def _turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-second, first), dim=-1) * self.sin


class Expert(nn.Module):
    """A SwiGLU MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.expert_width, bias=False)
        self.up = nn.Linear(shape.width, shape.expert_width, bias=False)
        self.down = nn.Linear(shape.expert_width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, D]."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class MoE(nn.Module):
    """A MoE layer whose gates are the softmax over the active experts, times their number."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_active = shape.num_active
        self.router = nn.Linear(shape.width, shape.num_experts, bias=False)
        self.experts = nn.ModuleList(Expert(shape) for _ in range(shape.num_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the branch [B, S, D] and the balancing loss, which is 1 if all experts get the same load."""
        rows = x.flatten(0, 1)
        probabilities = self.router(rows).softmax(-1)
        top, chosen = probabilities.topk(self.num_active, dim=-1)
        gates = top / top.sum(-1, keepdim=True)
        out = torch.zeros_like(rows)
        hits = F.one_hot(chosen, len(self.experts))
        for index, expert in enumerate(self.experts):
            token, slot = (chosen == index).nonzero(as_tuple=True)
            out.index_add_(0, token, gates[token, slot].unsqueeze(1) * expert(rows[token]))
        load = hits.sum(1).float().mean(0) * (len(self.experts) / self.num_active)
        return out.view_as(x), (load * probabilities.mean(0)).sum()


class Block(nn.Module):
    """Attention and experts. Each reads its normed input and is added to the stream."""

    def __init__(self, shape: Shape, setting: Setting) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=setting.norm_eps)
        self.attention = Attention(shape, setting)
        self.moe_norm = nn.RMSNorm(shape.width, eps=setting.norm_eps)
        self.moe = MoE(shape)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stream [B, S, D] after the block, and its balancing loss."""
        x = x + self.attention(self.attention_norm(x))
        y, loss = self.moe(self.moe_norm(x))
        return x + y, loss


class PlainMixtral(nn.Module):
    """The model of one trial."""

    def __init__(self, shape: Shape, setting: Setting) -> None:
        super().__init__()
        self.embedding = nn.Embedding(setting.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape, setting) for _ in range(shape.depth))
        self.norm = nn.RMSNorm(shape.width, eps=setting.norm_eps)
        self.readout = nn.Linear(shape.width, setting.vocab_size, bias=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross entropy in nats of a batch [B, S], and the balancing loss."""
        x, losses = self.embedding(inputs), []
        for block in self.blocks:
            x, loss = block(x)
            losses.append(loss)
        logits = self.readout(self.norm(x)).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten()), torch.stack(losses).mean()


class PlainMixtralRun:
    """One trial that trains the plain way. Its weights start as copies of the stacked trainer's."""

    def __init__(self, trial: Trial, state: TrainState, member: int = 0) -> None:
        self.model, self.aux_weight = PlainMixtral(trial.shape, trial.setting), trial.hps.aux_weight
        copy_weights(self.model, state, member)
        hps = trial.hps
        matrices = [weight for weight in self.model.parameters() if weight.ndim == 2]
        gains = [weight for weight in self.model.parameters() if weight.ndim == 1]
        groups = [{"params": matrices, "weight_decay": hps.weight_decay}, {"params": gains, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=hps.lr, betas=(hps.beta1, hps.beta2), eps=hps.eps, fused=True)

    def step(self, batch: Batch) -> float:
        """Take one step and return the loss before it, without the balancing loss."""
        inputs, targets = (torch.from_numpy(ids) for ids in batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss, balancing = self.model(inputs, targets)
        (loss + self.aux_weight * balancing).backward()
        self.optimizer.step()
        return float(loss.detach())


@torch.no_grad()
def copy_weights(model: PlainMixtral, state: TrainState, member: int) -> None:
    """Copy one trial's parameters into the module. Ours are [in, out]; those of nn.Linear are [out, in]."""
    own = {
        (tensor.name, block): copy[member]
        for tensor in gpt_parameters(state.stack.shape, state.setting)
        for block, copy in zip(tensor.blocks or (-1,), state.weights[tensor.name], strict=True)
    }
    model.embedding.weight.copy_(own["embedding", -1])
    model.norm.weight.copy_(own["final_norm", -1])
    model.readout.weight.copy_(own["readout", -1].T)
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        block.attention_norm.weight.copy_(own["attn_norm", index])
        block.moe_norm.weight.copy_(own["ffn_norm", index])
        qkv = torch.cat([own[name, index] for name in ("attn_q", "attn_k", "attn_v")], dim=1)
        block.attention.qkv.weight.copy_(qkv.T)
        block.attention.out.weight.copy_(own["attn_out", index].T)
        block.moe.router.weight.copy_(own["router", index].T)
        for number, expert in enumerate(block.moe.experts):
            assert isinstance(expert, Expert)
            for mine, name in ((expert.up, "in"), (expert.gate, "gate"), (expert.down, "out")):
                mine.weight.copy_(own[f"expert_{name}", index][number].T)
