"""How hard built-in samples are: top-5 error of a small MLP mixture and of a linear model, both tuned.

    python tests/studies/sample_difficulty.py builtin:shapes

The mixture is that of MSSP's search (P.1.2): an input layer with GELU, 8 soft experts of hidden width 16 behind a
sigmoid gate, width 128, no residual; 1,000 steps of 50 samples. Trials of one optimizer train as one batched model.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from hpxfer.data.samples import scaled
from hpxfer.data.sources import open_samples

WIDTH, EXPERTS, HIDDEN, STEPS, BATCH, HELD_OUT = 128, 8, 16, 1000, 50, 5000
Weights = dict[str, Tensor]


def mixture(weights: Weights, x: Tensor) -> Tensor:
    """Return logits [K, B, C] of K mixtures for samples [B, D]."""
    h = torch.nn.functional.gelu(x @ weights["input"])
    gates = torch.sigmoid(h @ weights["router"])
    inner = torch.nn.functional.gelu(h @ weights["expert_in"])
    inner = (inner.unflatten(-1, (EXPERTS, HIDDEN)) * gates.unsqueeze(-1)).flatten(-2)
    return (inner @ weights["expert_out"] / EXPERTS) @ weights["readout"]


def linear(weights: Weights, x: Tensor) -> Tensor:
    return x @ weights["readout"]


def of_mixture(inputs: int, classes: int, trials: int) -> Weights:
    """Return weights [K, fan_in, fan_out] of the mixture, with equal draws in all trials."""
    sizes = {
        "input": (inputs, WIDTH, inputs),
        "router": (WIDTH, EXPERTS, WIDTH),
        "expert_in": (WIDTH, EXPERTS * HIDDEN, WIDTH),
        "expert_out": (EXPERTS * HIDDEN, WIDTH, HIDDEN),
    }
    torch.manual_seed(0)
    weights = {name: torch.randn(a, b) / math.sqrt(fan_in) for name, (a, b, fan_in) in sizes.items()}
    weights["readout"] = torch.zeros(WIDTH, classes)
    return {name: weight.repeat(trials, 1, 1).requires_grad_() for name, weight in weights.items()}


def train(
    model: Callable[[Weights, Tensor], Tensor],
    weights: Weights,
    rates: dict[str, Tensor],
    adam: bool,
    data: list[Tensor],
) -> list[float]:
    """Return the top-5 error of each trial on held-out samples. `rates` are [K] per weight."""
    x, y, held_x, held_y = data
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in weights.items()}
    trials = len(weights["readout"])
    for step in range(STEPS):
        here = slice(step * BATCH, (step + 1) * BATCH)
        logits = model(weights, x[here])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y[here].repeat(trials)) * trials
        grads = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        with torch.no_grad():
            for name, weight in weights.items():
                update = grads[name]
                if adam:
                    first, second = moments[name]
                    first.lerp_(update, 0.1)
                    second.lerp_(update.square(), 0.05)
                    update = first / (1 - 0.9 ** (step + 1)) / ((second / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8)
                weight.sub_(rates[name].view(-1, 1, 1) * update)
    with torch.no_grad():
        logits = model(weights, held_x)
        own = logits.gather(-1, held_y.expand(trials, -1).unsqueeze(-1))
        return [float(share) for share in (((logits >= own).sum(-1) > 5) | own.isnan().squeeze(-1)).double().mean(-1)]


def report(name: str, errors: list[float], what: list[str]) -> None:
    order = sorted(range(len(errors)), key=errors.__getitem__)
    best = "; ".join(f"{100 * errors[k]:.1f}% at {what[k]}" for k in order[:3])
    print(f"{name}: top-5 error {best}", flush=True)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    source = parser.parse_args().source
    torch.set_num_threads(1)
    found = open_samples(source)
    begin = time.perf_counter()
    x, y = found.train(0, 0, STEPS * BATCH, 0)
    print(f"{STEPS * BATCH} samples in {time.perf_counter() - begin:.2f} s")  # noqa: T201
    held_x, held_y = found.held_out(0, HELD_OUT)
    inputs = [torch.from_numpy(scaled(each, found.normalization)) for each in (x, held_x)]
    data = [inputs[0], torch.from_numpy(y), inputs[1], torch.from_numpy(held_y)]
    num_inputs, classes = found.facts.num_inputs, found.facts.num_classes
    for adam in (False, True):
        name = "Adam" if adam else "SGD"
        lrs = [2.0**k for k in (range(-13, -4) if adam else range(-9, 2))]
        weights = {"readout": torch.zeros(len(lrs), num_inputs, classes, requires_grad=True)}
        errors = train(linear, weights, {"readout": torch.tensor(lrs)}, adam, data)
        report(f"linear, {name}", errors, [f"{lr:g}" for lr in lrs])
        # The rates of SGD by role are those of muP up to constants, which the grid finds.
        shares = [(1, 1, 1)] if adam else list(itertools.product((1, 8), (8, 64), (0.125, 1)))
        lrs = [2.0**k for k in (range(-11, -4) if adam else range(-5, 2))]
        errors, what = [], []
        for of_input, of_experts, of_readout in shares:
            share = {"input": of_input, "router": 1, "expert_in": of_experts, "expert_out": of_experts}
            rates = {k: torch.tensor([lr * v for lr in lrs]) for k, v in {**share, "readout": of_readout}.items()}
            errors += train(mixture, of_mixture(num_inputs, classes, len(lrs)), rates, adam, data)
            what += [f"{lr:g} x ({of_input}, {of_experts}, {of_readout})" for lr in lrs]
        report(f"mixture, {name}", errors, what)


if __name__ == "__main__":
    main()
