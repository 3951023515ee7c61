"""The plain way: the built-in GPT as a competent user writes it, one trial at a time. It is the trainer's yardstick.

It is an nn.Module with a fused QKV projection, PyTorch's attention, a loop over the experts and torch's fused AdamW. A
test shows that its losses are those of the stacked trainer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpxfer.data.batches import Batch
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.shape import Shape
from hpxfer.train.state import TrainState
from hpxfer.trial import Trial


class Attention(nn.Module):
    """Causal self-attention, whose logits are divided by head_dim."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads, self.head_dim = shape.query_heads, shape.head_dim
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch [B, S, D]."""
        batch, context, dim = x.shape
        split = (batch, context, self.num_heads, self.head_dim)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.head_dim)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, context, dim))
        return out


class Expert(nn.Module):
    """An MLP with GELU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.expert_width, bias=False)
        self.down = nn.Linear(shape.expert_width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, D]."""
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class MoE(nn.Module):
    """A MoE layer with one active expert per token, chosen by sigmoid gate plus balancing bias."""

    bias: Tensor
    load: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        assert shape.num_active == 1
        self.router = nn.Linear(shape.width, shape.num_experts, bias=False)
        self.experts = nn.ModuleList(Expert(shape) for _ in range(shape.num_experts))
        self.register_buffer("bias", torch.zeros(shape.num_experts))
        self.register_buffer("load", torch.zeros(shape.num_experts))

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch [B, S, D], and keep the share of the tokens that each expert got."""
        rows = x.flatten(0, 1)
        gates = torch.sigmoid(self.router(rows))
        chosen = (gates.detach() + self.bias).argmax(-1)
        gate = gates.gather(1, chosen.unsqueeze(1))
        out = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            token = (chosen == index).nonzero().squeeze(1)
            out.index_add_(0, token, gate[token] * expert(rows[token]))
            self.load[index] = token.numel() / len(rows)
        return out.view_as(x)


class Block(nn.Module):
    """Attention and experts. Each reads its normed input and is added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width, elementwise_affine=False)
        self.attention = Attention(shape)
        self.moe_norm = nn.LayerNorm(shape.width, elementwise_affine=False)
        self.moe = MoE(shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream [B, S, D] after the block."""
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.moe(self.moe_norm(x))
        return out


class PlainGPT(nn.Module):
    """The model of one trial."""

    def __init__(self, shape: Shape, vocab_size: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, shape.width)
        self.position = nn.Embedding(context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width, elementwise_affine=False)
        self.readout = nn.Linear(shape.width, vocab_size, bias=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy in nats of a batch [B, S]."""
        x = self.embedding(inputs) + self.position.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.readout(self.norm(x)).flatten(0, 1), targets.flatten())


class PlainRun:
    """One trial that trains the plain way. Its weights start as copies of the stacked trainer's."""

    def __init__(self, trial: Trial, state: TrainState, member: int = 0) -> None:
        setting, hps = trial.setting, trial.hps
        self.model = PlainGPT(trial.shape, setting.vocab_size, setting.context)
        copy_weights(self.model, state, member)
        self.rate, self.kappa = hps.router_bias_lr, trial.shape.kappa
        undecayed = [self.model.position.weight]
        decayed = [weight for weight in self.model.parameters() if weight is not undecayed[0]]
        groups = [
            {"params": decayed, "weight_decay": hps.weight_decay},
            {"params": undecayed, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=hps.lr, betas=(hps.beta1, hps.beta2), eps=hps.eps, fused=True)

    def step(self, batch: Batch) -> float:
        """Take one step and return the loss before it."""
        inputs, targets = (torch.from_numpy(ids) for ids in batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(inputs, targets)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for block in self.model.blocks:
                assert isinstance(block, Block)
                block.moe.bias -= self.rate * (block.moe.load - self.kappa)
        return float(loss.detach())


@torch.no_grad()
def copy_weights(model: PlainGPT, state: TrainState, member: int) -> None:
    """Copy one trial's parameters into the module. Ours are [in, out]; those of nn.Linear are [out, in]."""
    own = {
        (tensor.name, block): copy[member]
        for tensor in gpt_parameters(state.stack.shape, state.setting)
        for block, copy in zip(tensor.blocks or (-1,), state.weights[tensor.name], strict=True)
    }
    model.embedding.weight.copy_(own["embedding", -1])
    model.position.weight.copy_(own["position", -1])
    model.readout.weight.copy_(own["readout", -1].T)
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        qkv = torch.cat([own[name, index] for name in ("attn_q", "attn_k", "attn_v")], dim=1)
        block.attention.qkv.weight.copy_(qkv.T)
        block.attention.out.weight.copy_(own["attn_out", index].T)
        block.moe.router.weight.copy_(own["router", index].T)
        for number, expert in enumerate(block.moe.experts):
            assert isinstance(expert, Expert)
            expert.up.weight.copy_(own["expert_in", index][number].T)
            expert.down.weight.copy_(own["expert_out", index][number].T)
