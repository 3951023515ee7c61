"""Ground truth: the residual network at a finite size, trained by torch autograd in float64.

    h <- h + 1/(L K) sum_i phi_i W3_i act(W2_i h)        f = W4 h        b_i is drawn once and not trained

Its numbers are those of the family `mlp` under `mup-iii` with bases of 1: W1 D^-1/2 and LR N, W2 N^-1/2 and LR M,
W3 N_e^-1/2 and LR M, W4 1/N and LR 1/N, and a router that starts at zero with LR 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "tanh": torch.tanh,
}


@dataclass
class Net:
    width: int
    num_experts: int
    expert_width: int
    depth: int = 1
    act: str = "linear"
    num_active: int | None = None
    over_all: bool = False  # divide by M and not by K
    beta: float = 1.0
    bias_std: float = 1.0
    is_bias_trained: bool = False
    std: dict[str, float] = field(default_factory=dict)
    rate: dict[str, float] = field(default_factory=dict)

    def start(self, num_inputs: int, num_outputs: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        n, m, h, blocks = self.width, self.num_experts, self.expert_width, self.depth

        def normal(*shape: int, std: float) -> Tensor:
            return std * torch.randn(*shape, generator=generator, dtype=torch.float64)

        return {
            "embedding": normal(n, num_inputs, std=self.std.get("embedding", 1.0) * num_inputs**-0.5),
            "router": normal(blocks, m, n, std=self.std.get("router", 0.0)),
            "router_bias": normal(blocks, m, std=self.bias_std),
            "expert_in": normal(blocks, m, h, n, std=self.std.get("expert_in", 1.0) * n**-0.5),
            "expert_out": normal(blocks, m, h, n, std=self.std.get("expert_out", 1.0) * h**-0.5),
            "readout": normal(num_outputs, n, std=self.std.get("readout", 1.0) / n),
        }

    def forward(self, w: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        m = self.num_experts
        k = self.num_active or m
        h = x @ w["embedding"].T
        seen: dict[str, list[Tensor]] = {"logits": [], "gates": [], "h1": [], "h3": []}
        for block in range(self.depth):
            logits = h @ w["router"][block].T + w["router_bias"][block]
            gates = torch.sigmoid(self.beta * logits)
            if k < m:
                gates = gates * torch.zeros_like(gates).scatter(1, logits.topk(k, dim=1).indices, 1.0)
            hidden = ACTIVATIONS[self.act](torch.einsum("pn,ihn->pih", h, w["expert_in"][block]))
            branch = torch.einsum("pih,ihn->pn", gates[..., None] * hidden, w["expert_out"][block])
            branch = branch / (m if self.over_all else k)
            for name, value in (("logits", logits), ("gates", gates), ("h1", h), ("h3", branch)):
                seen[name].append(value.detach())
            h = h + branch / self.depth
        return h @ w["readout"].T, {name: torch.stack(parts) for name, parts in seen.items()}

    def train(
        self, batches: list[tuple[Tensor, Tensor]], lr: float, seed: int, loss: str = "squared_error"
    ) -> list[dict]:
        """Return the numbers of every pass."""
        num_outputs = batches[0][1].shape[1] if loss == "squared_error" else int(batches[0][1].max()) + 1
        w = self.start(batches[0][0].shape[1], num_outputs, seed)
        n, m = self.width, self.num_experts
        table = {"embedding": n, "router": 1, "expert_in": m, "expert_out": m, "readout": 1 / n, "router_bias": 1}
        out = []
        for at, (x, y) in enumerate(batches):
            w = {name: value.detach().requires_grad_() for name, value in w.items()}
            f, seen = self.forward(w, x)
            squared = loss == "squared_error"
            value = ((f - y) ** 2).sum(1).mean() if squared else torch.nn.functional.cross_entropy(f, y)
            out.append(
                {
                    "loss": value.item(),
                    "gate_mean": seen["gates"].mean().item(),
                    "gate_variance": seen["gates"].var(2, unbiased=False).mean().item(),
                    "logit_mean": seen["logits"].mean().item(),
                    "logit_variance": seen["logits"].var(2, unbiased=False).mean().item(),
                    "h1_rms": (seen["h1"] ** 2).mean().sqrt().item(),
                    "h3_rms": (seen["h3"] ** 2).mean().sqrt().item(),
                }
            )
            if at == len(batches) - 1:
                break
            gradients = dict(zip(w, torch.autograd.grad(value, list(w.values())), strict=True))
            trained = [name for name in w if name != "router_bias" or self.is_bias_trained]
            for name in trained:
                w[name] = w[name] - lr * table[name] * self.rate.get(name, 1.0) * gradients[name]
        return out
