"""The plain ways: the built-in models as a competent user writes them in torch, one trial at a time.

They are nn.Modules with PyTorch's attention, a loop over the experts (or, of the MLP mixture, one batched product) and
torch's fused optimizers. Tests show that their losses are those of the stacked trainer.
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


def is_mixtral(setting: Setting) -> bool:
    """Return whether the model is that of `like: mixtral`; otherwise it is the nanoGPT."""
    return setting.norm == "rmsnorm"


class Attention(nn.Module):
    """Causal self-attention with a fused projection; in the Mixtral with RoPE and fewer heads of keys."""

    def __init__(self, shape: Shape, setting: Setting) -> None:
        super().__init__()
        self.sizes, self.head_dim = [shape.attention_width, shape.kv_width, shape.kv_width], shape.head_dim
        self.mixtral = is_mixtral(setting)
        self.qkv = nn.Linear(shape.width, sum(self.sizes), bias=False)
        self.out = nn.Linear(shape.attention_width, shape.width, bias=False)
        if self.mixtral:
            frequencies = setting.rope_theta ** -(torch.arange(0, shape.head_dim, 2) / shape.head_dim)
            angles = torch.outer(torch.arange(setting.context), frequencies).repeat(1, 2)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        batch, context, _ = x.shape
        parts = self.qkv(x).split(self.sizes, dim=-1)
        q, k, v = (part.view(batch, context, -1, self.head_dim).transpose(1, 2) for part in parts)
        if self.mixtral:
            y = F.scaled_dot_product_attention(self._turned(q), self._turned(k), v, is_causal=True, enable_gqa=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.head_dim)
        return self.out(y.transpose(1, 2).reshape(batch, context, -1))

    def _turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-second, first), dim=-1) * self.sin


class Expert(nn.Module):
    """An MLP with GELU, or in the Mixtral with SwiGLU."""

    def __init__(self, shape: Shape, *, gated: bool) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.expert_width, bias=False)
        self.gate = nn.Linear(shape.width, shape.expert_width, bias=False) if gated else None
        self.down = nn.Linear(shape.expert_width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x))


class MoE(nn.Module):
    """A loop over the experts. The nanoGPT chooses one by sigmoid gate plus balancing bias; the Mixtral chooses several
    by softmax, whose gates are renormalized, and has a balancing loss.
    """

    def __init__(self, shape: Shape, setting: Setting) -> None:
        super().__init__()
        self.num_active, self.mixtral = shape.num_active, is_mixtral(setting)
        assert self.mixtral or shape.num_active == 1
        self.router = nn.Linear(shape.width, shape.num_experts, bias=False)
        self.experts = nn.ModuleList(Expert(shape, gated=self.mixtral) for _ in range(shape.num_experts))
        self.register_buffer("bias", torch.zeros(shape.num_experts))
        self.register_buffer("load", torch.zeros(shape.num_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the branch [B, S, D] and the balancing loss, and keep the share of the tokens that each expert got."""
        rows = x.flatten(0, 1)
        logits = self.router(rows)
        if self.mixtral:
            scores = logits.softmax(-1)
            top, chosen = scores.topk(self.num_active, dim=-1)
            gates = top / top.sum(-1, keepdim=True)
        else:
            scores = torch.sigmoid(logits)
            chosen = (scores.detach() + self.bias).argmax(-1, keepdim=True)
            gates = scores.gather(1, chosen)
        out = torch.zeros_like(rows)
        for index, expert in enumerate(self.experts):
            token, slot = (chosen == index).nonzero(as_tuple=True)
            out.index_add_(0, token, gates[token, slot].unsqueeze(1) * expert(rows[token]))
            self.load[index] = token.numel() / len(rows)
        share = len(self.experts) / self.num_active
        return out.view_as(x), share * (self.load * scores.mean(0)).sum() if self.mixtral else rows.new_zeros(())


class Block(nn.Module):
    """Attention and experts. Each reads its normed input and is added to the stream."""

    def __init__(self, shape: Shape, setting: Setting) -> None:
        super().__init__()
        self.attention_norm, self.moe_norm = _norm(shape, setting), _norm(shape, setting)
        self.attention, self.moe = Attention(shape, setting), MoE(shape, setting)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attention(self.attention_norm(x))
        y, balancing = self.moe(self.moe_norm(x))
        return x + y, balancing


def _norm(shape: Shape, setting: Setting) -> nn.Module:
    if is_mixtral(setting):
        return nn.RMSNorm(shape.width, eps=setting.norm_eps)
    return nn.LayerNorm(shape.width, elementwise_affine=False)


class PlainGPT(nn.Module):
    """The model of one trial."""

    def __init__(self, shape: Shape, setting: Setting) -> None:
        super().__init__()
        self.embedding = nn.Embedding(setting.vocab_size, shape.width)
        self.position = None if is_mixtral(setting) else nn.Embedding(setting.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape, setting) for _ in range(shape.depth))
        self.norm = _norm(shape, setting)
        self.readout = nn.Linear(shape.width, setting.vocab_size, bias=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross entropy in nats of a batch [B, S], and the balancing loss."""
        x, losses = self.embedding(inputs), []
        if self.position is not None:
            x = x + self.position.weight
        for block in self.blocks:
            x, loss = block(x)
            losses.append(loss)
        logits = self.readout(self.norm(x)).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten()), torch.stack(losses).mean()


class PlainRun:
    """One trial that trains the plain way. Its weights start as copies of the stacked trainer's."""

    def __init__(self, trial: Trial, state: TrainState, member: int = 0) -> None:
        hps = trial.hps
        self.model, self.aux_weight = PlainGPT(trial.shape, trial.setting), hps.aux_weight
        copy_weights(self.model, state, member)
        self.bias_rate = 0.0 if is_mixtral(trial.setting) else hps.router_bias_lr
        self.kappa = trial.shape.kappa
        decays: dict[float, list[Tensor]] = {hps.weight_decay: [], 0.0: []}
        for name, weight in self.model.named_parameters():
            decays[0.0 if weight.ndim == 1 or name == "position.weight" else hps.weight_decay].append(weight)
        groups = [{"params": weights, "weight_decay": decay} for decay, weights in decays.items()]
        self.optimizer = torch.optim.AdamW(groups, lr=hps.lr, betas=(hps.beta1, hps.beta2), eps=hps.eps, fused=True)

    def step(self, batch: Batch) -> float:
        """Take one step and return the loss before it, without the balancing loss."""
        inputs, targets = (torch.from_numpy(ids) for ids in batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss, balancing = self.model(inputs, targets)
        (loss + self.aux_weight * balancing if self.aux_weight else loss).backward()
        self.optimizer.step()
        if self.bias_rate:
            for block in self.model.blocks:
                block.moe.bias -= self.bias_rate * (block.moe.load - self.kappa)
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
    model.readout.weight.copy_(own["readout", -1].T)
    if model.position is not None:
        model.position.weight.copy_(own["position", -1])
    else:
        model.norm.weight.copy_(own["final_norm", -1])
    for index, block in enumerate(model.blocks):
        if model.position is None:
            block.attention_norm.weight.copy_(own["attn_norm", index])
            block.moe_norm.weight.copy_(own["ffn_norm", index])
        qkv = torch.cat([own[name, index] for name in ("attn_q", "attn_k", "attn_v")], dim=1)
        block.attention.qkv.weight.copy_(qkv.T)
        block.attention.out.weight.copy_(own["attn_out", index].T)
        block.moe.router.weight.copy_(own["router", index].T)
        for number, expert in enumerate(block.moe.experts):
            for mine, name in ((expert.up, "in"), (expert.gate, "gate"), (expert.down, "out")):
                if mine is not None:
                    mine.weight.copy_(own[f"expert_{name}", index][number].T)


class PlainMLP(nn.Module):
    """The MLP mixture of one trial, with one block: its experts as one batched product, or listed in a loop.

    All experts are active under a sigmoid gate, as in MSSP (P.1).
    """

    def __init__(self, trial: Trial, *, listed: bool) -> None:
        super().__init__()
        shape, setting = trial.shape, trial.setting
        assert (shape.depth, setting.gate, shape.num_active) == (1, "sigmoid", shape.num_experts)
        self.input = nn.Linear(setting.num_inputs, shape.width, bias=False)
        self.router = nn.Linear(shape.width, shape.num_experts, bias=False)
        self.listed = nn.ModuleList(Expert(shape, gated=False) for _ in range(shape.num_experts * listed))
        if not listed:
            self.up = nn.Parameter(torch.empty(shape.num_experts, shape.width, shape.expert_width))
            self.down = nn.Parameter(torch.empty(shape.num_experts, shape.expert_width, shape.width))
        self.readout = nn.Linear(shape.width, setting.vocab_size, bias=False)
        self.factor = trial.resolved()["expert_out"].forward  # of the sum over the experts

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy in nats of samples [B, D]."""
        h = F.gelu(self.input(inputs))
        out = self.factor * self._mixture(h, torch.sigmoid(self.router(h)))
        return F.cross_entropy(self.readout(out), targets)

    def _mixture(self, h: Tensor, gates: Tensor) -> Tensor:
        if not self.listed:
            return (torch.bmm(F.gelu(torch.matmul(h, self.up)), self.down) * gates.T.unsqueeze(-1)).sum(0)
        out = torch.zeros_like(h)
        for index, expert in enumerate(self.listed):
            out = out + gates[:, index : index + 1] * expert(h)
        return out


class PlainMLPRun:
    """One trial that trains a plain way, from copies of the stacked trainer's weights."""

    def __init__(self, trial: Trial, state: TrainState, *, listed: bool, member: int = 0) -> None:
        self.model = PlainMLP(trial, listed=listed)
        self._copy_weights({name: copies[0][member] for name, copies in state.weights.items()})
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=trial.hps.lr, fused=True)

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        """Take one step and return the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(inputs, targets)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def _copy_weights(self, own: dict[str, Tensor]) -> None:
        """Copy one trial's parameters. Ours are [in, out], but [experts, out, in] in front of an expert's features."""
        model = self.model
        for linear, name in ((model.input, "input"), (model.router, "router"), (model.readout, "readout")):
            linear.weight.copy_(own[name].T)
        if not model.listed:
            model.up.copy_(own["expert_in"].mT)
            model.down.copy_(own["expert_out"])
        for index, expert in enumerate(model.listed):
            expert.up.weight.copy_(own["expert_in"][index])
            expert.down.weight.copy_(own["expert_out"][index].T)
