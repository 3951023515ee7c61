"""The stacked GPT against the plainest float64 code: one trial, one sequence, one head and one token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from tiny_trials import BASE, JOINT, SETTING, random_like, trial
from tolerances import assert_near, is_near
from torch import Tensor

from hpxfer.hps import HPs
from hpxfer.model.flat import Flat, Weights, draw, gradients
from hpxfer.model.gpt import FORWARD_ROLES, GPT, forward_multipliers
from hpxfer.model.layout import tensors
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.shape import Shape
from hpxfer.trial import Setting

Layers = Mapping[str, tuple[Tensor, ...]]  # of one trial
SMALL = replace(SETTING, context=8, batch_tokens=32, vocab_size=40)
RESIDUAL = HPs(lr=1.0, residual_scale=0.7)

CASES = {
    "base": (BASE, SMALL, "sp"),
    "joint": (JOINT, SMALL, "completep-moe"),
    "tied": (replace(JOINT, depth=2), replace(SMALL, tied_embeddings=True), "completep-moe"),
    "gains and biases": (replace(JOINT, depth=2), replace(SMALL, norm_gains=True, biases=True), "completep-moe"),
    "softmax": (replace(JOINT, depth=2), replace(SMALL, gate="softmax"), "sp"),
    "1/sqrt(d_head)": (BASE, replace(SMALL, attention_scale="1/sqrt(d_head)"), "sp"),
}


def reference(
    w: Layers,
    bias_LE: Tensor,
    inputs_BS: Tensor,
    targets_BS: Tensor,
    c: Mapping[str, float],
    shape: Shape,
    setting: Setting,
) -> Tensor:
    """Return the cross entropy of every token of one trial, [B*S]."""
    losses = []
    for inputs, targets in zip(inputs_BS, targets_BS, strict=True):
        x = w["embedding"][0][inputs] + w["position"][0]
        for layer in range(shape.depth):
            x = x + c["attn_out"] * attention(w, layer, norm(w, "attn_norm", layer, x), shape, setting)
            h = norm(w, "moe_norm", layer, x)
            y = [moe(w, layer, token, bias_LE[layer], shape, setting) for token in h]
            x = x + c["expert_out"] * torch.stack(y)
        h = norm(w, "final_norm", 0, x)
        readout = w["embedding"][0].T if setting.tied_embeddings else w["readout"][0]
        logits = c["readout"] * (h @ readout)
        for token, target in zip(logits, targets, strict=True):
            losses.append(torch.log(torch.exp(token).sum()) - token[target])
    return torch.stack(losses)


def norm(w: Layers, name: str, layer: int, x: Tensor) -> Tensor:
    center = x - x.mean(-1, keepdim=True)
    y = center / torch.sqrt((center**2).mean(-1, keepdim=True) + 1e-5)
    if name in w:
        y = y * w[name][layer]
    return plus_bias(w, name, layer, y)


def plus_bias(w: Layers, name: str, layer: int, x: Tensor) -> Tensor:
    return x + w[f"{name}_bias"][layer] if f"{name}_bias" in w else x


def attention(w: Layers, layer: int, h_SD: Tensor, shape: Shape, setting: Setting) -> Tensor:
    q, k, v = (plus_bias(w, name, layer, h_SD @ w[name][layer]) for name in ("attn_q", "attn_k", "attn_v"))
    scale = shape.head_dim if setting.attention_scale == "1/d_head" else shape.head_dim**0.5
    heads = []
    for low in range(0, shape.width, shape.head_dim):
        head = slice(low, low + shape.head_dim)
        scores = q[:, head] @ k[:, head].T / scale
        future = torch.ones_like(scores).triu(1).bool()
        weight = torch.exp(scores.masked_fill(future, -torch.inf))
        heads.append(weight / weight.sum(-1, keepdim=True) @ v[:, head])
    return plus_bias(w, "attn_out", layer, torch.cat(heads, -1) @ w["attn_out"][layer])


def moe(w: Layers, layer: int, h_D: Tensor, bias_E: Tensor, shape: Shape, setting: Setting) -> Tensor:
    logits = h_D @ w["router"][layer]
    if setting.gate == "sigmoid":
        gates = 1 / (1 + torch.exp(-logits))
    else:
        gates = shape.num_active * torch.exp(logits) / torch.exp(logits).sum()
    out = torch.zeros_like(h_D)
    for expert in sorted(range(shape.num_experts), key=lambda e: -float((gates[e] + bias_E[e]).detach()))[
        : shape.num_active
    ]:
        up = h_D @ w["expert_in"][layer][expert]
        if setting.biases:
            up = up + w["expert_in_bias"][layer][expert]
        up = up * 0.5 * (1 + torch.erf(up / 2**0.5))
        down = up @ w["expert_out"][layer][expert]
        if setting.biases:
            down = down + w["expert_out_bias"][layer][expert]
        out = out + gates[expert] * down
    return out


class Case:
    """Two trials of unlike seeds and residual scales, with random gains, biases and router biases."""

    def __init__(self, shape: Shape, setting: Setting, name: str) -> None:
        self.shape, self.setting = shape, setting
        trials = [trial(setting, shape, name, seed=k, hps=replace(RESIDUAL, residual_scale=0.7 + k)) for k in (0, 1)]
        self.resolved = [one.resolved() for one in trials]
        self.layout = Flat(tensors=tensors(shape, setting), num_trials=2)
        stds = [{role: one.init_std for role, one in roles.items()} for roles in self.resolved]
        self.weights = self.layout.leaves(draw(self.layout, (0, 1), stds))
        for seed, copy in enumerate(
            c for n, copies in self.weights.items() if "norm" in n or "bias" in n for c in copies
        ):
            copy.detach().add_(random_like(copy, seed, 0.3))
        self.bias_LKE = random_like(torch.zeros(shape.depth, 2, shape.num_experts), 1, 0.2)
        generator = torch.Generator().manual_seed(2)
        size = (2, 2, setting.batch_tokens // setting.context, setting.context)
        self.inputs, self.targets = torch.randint(setting.vocab_size, size, generator=generator)
        self.grad_KT = random_like(torch.zeros(2, setting.batch_tokens), 3)

    def stacked(self, forward: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Weights]:
        """Return losses [K, T] and the gradients of the code under test."""
        chosen = forward or forward_multipliers(self.resolved, torch.device("cpu"))
        model = GPT(shape=self.shape, setting=self.setting, num_trials=2, forward=chosen)
        losses = model(self.weights, self.bias_LKE, self.inputs, self.targets).losses_KT
        return losses, gradients(losses, self.weights, self.grad_KT)

    def plain(self, dtype: torch.dtype) -> tuple[Tensor, Weights]:
        """Return the same of the reference."""
        weights = {
            name: tuple(c.detach().to(dtype).requires_grad_() for c in copies) for name, copies in self.weights.items()
        }
        losses = torch.stack(
            [
                reference(
                    {name: tuple(copy[k] for copy in copies) for name, copies in weights.items()},
                    self.bias_LKE[:, k].to(dtype),
                    self.inputs[k],
                    self.targets[k],
                    {role: self.resolved[k][role].forward for role in FORWARD_ROLES},
                    self.shape,
                    self.setting,
                )
                for k in (0, 1)
            ]
        )
        return losses, gradients(losses, weights, self.grad_KT.to(dtype))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_losses_and_gradients_equal_the_reference(case: tuple[Shape, Setting, str]) -> None:
    made = Case(*case)
    (losses, grads), (own, own_grads), (exact, exact_grads) = (
        made.stacked(),
        made.plain(torch.float32),
        made.plain(torch.float64),
    )
    assert_near(losses, own, exact, "losses")
    for name, copies in grads.items():
        for layer, grad in enumerate(copies):
            assert_near(grad, own_grads[name][layer], exact_grads[name][layer], f"{name} of layer {layer}")


@pytest.mark.parametrize("role", FORWARD_ROLES)
def test_a_missing_forward_multiplier_is_seen(role: str) -> None:
    made = Case(*CASES["joint"])
    forward = forward_multipliers(made.resolved, torch.device("cpu"))
    losses, _ = made.stacked({**forward, role: torch.ones(2)})
    assert not is_near(losses, made.plain(torch.float32)[0], made.plain(torch.float64)[0])


def test_an_unknown_forward_multiplier_is_refused() -> None:
    roles = trial(SMALL).resolved()
    wrong = {**roles, "router": Multipliers(init_std=1.0, lr=1.0, eps=1.0, weight_decay=1.0, forward=0.5)}
    with pytest.raises(AssertionError, match="router"):
        forward_multipliers([roles, wrong], torch.device("cpu"))


def test_the_multipliers_of_a_stack_are_those_of_its_trials() -> None:
    trials = [trial(SMALL, JOINT, name, residual_scale=0.5) for name in ("sp", "completep-moe")]
    forward = forward_multipliers([one.resolved() for one in trials], torch.device("cpu"))
    # residual_scale; for completep-moe also depth^-1, active^-1 and width^-1 of 3/2, 2 and 2.
    assert torch.equal(forward["attn_out"], torch.tensor([0.5, 0.5 / 1.5]))
    assert torch.equal(forward["expert_out"], torch.tensor([0.5, 0.5 / 1.5 / 2]))
    assert torch.equal(forward["readout"], torch.tensor([1.0, 0.5]))


@pytest.mark.parametrize("name", ["base", "joint", "softmax"])
def test_probe_gives_loads_and_entropies(name: str) -> None:
    shape, setting, parameterization = CASES[name]
    made = Case(shape, setting, parameterization)
    forward = forward_multipliers(made.resolved, torch.device("cpu"))
    model = GPT(shape=shape, setting=setting, num_trials=2, forward=forward)
    router = tuple(torch.zeros_like(copy) for copy in made.weights["router"])
    output = model({**made.weights, "router": router}, made.bias_LKE, made.inputs, made.targets, probe=True)
    # Equal gates: the largest biases win, and the entropy is that of a uniform choice.
    chosen = made.bias_LKE.argsort(-1, descending=True)[..., : shape.num_active]
    expected = torch.zeros_like(made.bias_LKE, dtype=torch.long).scatter(-1, chosen, setting.batch_tokens)
    assert torch.equal(output.load_LKE, expected)
    assert output.entropy_LK is not None
    uniform = torch.full((shape.depth, 2), shape.num_experts, dtype=torch.float64).log()
    assert_near(output.entropy_LK, uniform.float(), uniform)


def test_entropies_are_computed_only_on_request() -> None:
    made = Case(*CASES["base"])
    forward = forward_multipliers(made.resolved, torch.device("cpu"))
    model = GPT(shape=BASE, setting=SMALL, num_trials=2, forward=forward)
    assert model(made.weights, made.bias_LKE, made.inputs, made.targets).entropy_LK is None
