"""The plain ways of the MLP mixture: as a competent user writes it in torch, one trial at a time.

One computes all experts of a block as one batched product, the other loops over an nn.ModuleList. All experts are
active under a sigmoid gate, as in MSSP (P.1). A test shows that their losses are those of the stacked trainer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hpxfer.scaling.shape import Shape
from hpxfer.train.state import TrainState
from hpxfer.trial import Setting, Trial


class BatchedExperts(nn.Module):
    """All experts as one batched product."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(shape.num_experts, shape.width, shape.expert_width))
        self.down = nn.Parameter(torch.empty(shape.num_experts, shape.expert_width, shape.width))

    def forward(self, h: Tensor, gates: Tensor) -> Tensor:
        """Return [B, N]: the sum over the experts, weighted by `gates` [B, E]."""
        out = torch.bmm(F.gelu(torch.matmul(h, self.up)), self.down)
        return (out * gates.T.unsqueeze(-1)).sum(0)


class ListedExperts(nn.Module):
    """A loop over the experts."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        size = shape.width, shape.expert_width
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(*size, bias=False), nn.GELU(), nn.Linear(*size[::-1], bias=False))
            for _ in range(shape.num_experts)
        )

    def forward(self, h: Tensor, gates: Tensor) -> Tensor:
        """Return [B, N]: the sum over the experts, weighted by `gates` [B, E]."""
        out = torch.zeros_like(h)
        for index, expert in enumerate(self.experts):
            out = out + gates[:, index : index + 1] * expert(h)
        return out


class PlainMLP(nn.Module):
    """The model of one trial, with one block."""

    def __init__(self, shape: Shape, setting: Setting, factor: float, *, listed: bool) -> None:
        super().__init__()
        assert shape.depth == 1
        assert setting.gate == "sigmoid"
        assert shape.num_active == shape.num_experts
        self.input = nn.Linear(setting.num_inputs, shape.width, bias=False)
        self.router = nn.Linear(shape.width, shape.num_experts, bias=False)
        self.experts = (ListedExperts if listed else BatchedExperts)(shape)
        self.readout = nn.Linear(shape.width, setting.vocab_size, bias=False)
        self.factor = factor  # of the sum over the experts

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy in nats of samples [B, D]."""
        h = F.gelu(self.input(inputs))
        out = self.factor * self.experts(h, torch.sigmoid(self.router(h)))
        return F.cross_entropy(self.readout(out), targets)


class PlainMLPRun:
    """One trial that trains a plain way, from copies of the stacked trainer's weights."""

    def __init__(self, trial: Trial, state: TrainState, *, listed: bool, member: int = 0) -> None:
        self.model = PlainMLP(trial.shape, trial.setting, trial.resolved()["expert_out"].forward, listed=listed)
        _copy_weights(self.model, state, member)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=trial.hps.lr, fused=True)

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        """Take one step and return the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(inputs, targets)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


@torch.no_grad()
def _copy_weights(model: PlainMLP, state: TrainState, member: int) -> None:
    """Copy one trial's parameters. Ours are [in, out], but [experts, out, in] in front of an expert's features."""
    own = {name: copies[0][member] for name, copies in state.weights.items()}
    for linear, name in ((model.input, "input"), (model.router, "router"), (model.readout, "readout")):
        linear.weight.copy_(own[name].T)
    experts = model.experts
    if isinstance(experts, BatchedExperts):
        experts.up.copy_(own["expert_in"].mT)
        experts.down.copy_(own["expert_out"])
        return
    for index, expert in enumerate(experts.experts):
        assert isinstance(expert, nn.Sequential)
        for layer, matrix in ((0, own["expert_in"][index]), (2, own["expert_out"][index].T)):
            weight = expert[layer].weight
            assert isinstance(weight, Tensor)
            weight.copy_(matrix)
