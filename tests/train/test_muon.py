"""Muon in the trainer, held to float64 in plain torch, one matrix at a time, and to torch.optim.Muon."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from plain_muon import plain_step

from hpxfer.errors import HpxferError
from hpxfer.kernels.orthogonal import orthogonal
from hpxfer.model.flat import FlatLayout
from hpxfer.model.parameters import ParameterSpec
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.train.optimizer import StackOptimizer

HEADS = 2
SPECS = (
    ParameterSpec(name="embedding", role="embedding", size=(10, 8)),
    ParameterSpec(name="attn_q", role="attn_q", size=(8, 16), blocks=(0, 1), heads=HEADS),
    ParameterSpec(name="attn_out", role="attn_out", size=(16, 8), blocks=(0, 1), heads=HEADS),
    ParameterSpec(name="router", role="router", size=(8, 3), blocks=(0, 1)),
    ParameterSpec(name="expert_in", role="expert_in", size=(3, 8, 24), blocks=(0, 1)),
    ParameterSpec(name="norm", role="norm", size=(8,), blocks=(0, 1)),
)
SCALES = {
    "spectral": lambda i, o: math.sqrt(o / i),
    "original": lambda i, o: max(1.0, o / i) ** 0.5,
    "match_rms_adamw": lambda i, o: 0.2 * max(i, o) ** 0.5,
}


def numbers(lr: float, decay: float = 0.5) -> Multipliers:
    return Multipliers(init_std=1.0, lr=lr, eps=1e-8, weight_decay=decay, forward=1.0)


def made(
    name: str, lrs: Sequence[float], specs: Sequence[ParameterSpec] = SPECS
) -> tuple[FlatLayout, torch.Tensor, StackOptimizer]:
    """Return the layout, the parameters and the optimizer of a stack whose trials have these LRs."""
    layout = FlatLayout(parameters=tuple(specs), num_trials=len(lrs))
    flat = torch.zeros(layout.numel)
    for name_, copies in layout.weights(flat).items():
        for copy in copies:
            for row in copy:
                row.copy_(draw(f"start {name_}", row.shape))
    optimizer = StackOptimizer(layout, flat, name)
    roles = {spec.role for spec in specs}
    optimizer.set_hps([(0.9, 0.95)] * len(lrs), [dict.fromkeys(roles, numbers(lr)) for lr in lrs], [0.95] * len(lrs))
    optimizer.reset()
    return layout, flat, optimizer


def draw(key: str, size: Sequence[int]) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(map(ord, key))))


def gradients(layout: FlatLayout, step: int, *, without: int | None = None) -> dict[str, tuple[torch.Tensor, ...]]:
    """Return gradients of a step, the same for every trial. The expert `without` has none."""
    out = {}
    for spec in layout.parameters:
        copies = []
        for layer in range(spec.layers):
            g = draw(f"{spec.name} {layer} {step}", spec.size) * 0.01
            if without is not None and spec.role == "expert_in":
                g[without] = 0.0
            copies.append(g.expand(layout.num_trials, *spec.size).clone())
        out[spec.name] = tuple(copies)
    return out


@pytest.mark.parametrize("scale", list(SCALES))
@pytest.mark.parametrize("heads", ["joint", "split"])
def test_every_matrix_takes_the_step_of_the_public_code(scale: str, heads: str) -> None:
    options = [f"scale={scale}", f"heads={heads}", "router=muon"]
    layout, flat, optimizer = made(f"muon[{','.join(options)}]", [0.02])
    weights = layout.weights(flat)
    expected = {name: [copy[0].double() for copy in copies] for name, copies in weights.items()}
    moments = {name: [torch.zeros_like(copy) for copy in copies] for name, copies in expected.items()}
    for step in range(3):
        grads = gradients(layout, step)
        for spec in SPECS[1:5]:
            for layer in range(spec.layers):
                w, m, g = expected[spec.name][layer], moments[spec.name][layer], grads[spec.name][layer][0].double()
                parts = HEADS if heads == "split" and spec.heads == HEADS else 1
                for view in zip(*(pieces(each, spec, parts) for each in (w, m, g)), strict=True):
                    fan_in, fan_out = view[0].shape
                    new_w, new_m = plain_step(*(each.T for each in view), 0.02, SCALES[scale](fan_in, fan_out))
                    view[0].copy_(new_w.T)
                    view[1].copy_(new_m.T)
        optimizer.step(grads, 1.0, None)
    for spec in SPECS[1:5]:
        for found, wanted in zip(weights[spec.name], expected[spec.name], strict=True):
            torch.testing.assert_close(found[0].double(), wanted, rtol=0, atol=2e-5)


def pieces(w: torch.Tensor, spec: ParameterSpec, parts: int) -> list[torch.Tensor]:
    """Return the matrices of a parameter that are orthogonalized apart, as views."""
    if w.dim() == 3:
        return list(w)
    return list(w.chunk(parts, 0 if spec.role == "attn_out" else 1))


def test_the_rest_is_adamw() -> None:
    layout, flat, optimizer = made("muon", [0.02])
    _, other, adamw = made("adamw", [0.02])
    for step in range(3):
        optimizer.step(gradients(layout, step), 1.0, None)
        adamw.step(gradients(layout, step), 1.0, None)
    found, wanted = layout.weights(flat), layout.weights(other)
    for name in ("embedding", "router", "norm"):
        assert all(torch.equal(a, b) for a, b in zip(found[name], wanted[name], strict=True))
    assert not torch.equal(found["attn_q"][0], wanted["attn_q"][0])
    assert optimizer.eps().keys() == {"embedding", "router", "norm"}
    assert optimizer.below_eps().keys() == {"embedding", "router", "norm"}


@pytest.mark.parametrize("name", ["muon", "muon[heads=split,router=muon]"])
def test_a_trial_has_the_same_bits_in_any_stack(name: str) -> None:
    alone = {}
    for lr in (0.01, 0.03):
        layout, flat, optimizer = made(name, [lr])
        for step in range(4):
            optimizer.step(gradients(layout, step), 0.5, 1.0)
        alone[lr] = {key: [copy[0] for copy in copies] for key, copies in layout.weights(flat).items()}
    layout, flat, optimizer = made(name, [0.01, 0.2, 0.03, 0.05, 0.01])
    for step in range(4):
        optimizer.step(gradients(layout, step), 0.5, 1.0)
    for key, copies in layout.weights(flat).items():
        for layer, copy in enumerate(copies):
            for trial, lr in ((0, 0.01), (2, 0.03), (4, 0.01)):
                assert torch.equal(copy[trial], alone[lr][key][layer]), key


def test_an_expert_without_tokens_takes_no_step_and_keeps_its_momentum() -> None:
    layout, flat, optimizer = made("muon", [0.02])
    optimizer.set_hps([(0.9, 0.95)], [dict.fromkeys({spec.role for spec in SPECS}, numbers(0.02, 0.0))], [0.95])
    optimizer.step(gradients(layout, 0), 1.0, None)
    before = layout.weights(flat.clone())["expert_in"][0][0]
    momentum = layout.weights(optimizer.moments[0].clone())["expert_in"][0][0]
    for step in range(1, 4):
        optimizer.step(gradients(layout, step, without=1), 1.0, None)
    after = layout.weights(flat)["expert_in"][0][0]
    assert torch.equal(after[1], before[1])
    assert torch.equal(layout.weights(optimizer.moments[0])["expert_in"][0][0][1], momentum[1])
    assert all(not torch.equal(after[expert], before[expert]) for expert in (0, 2))


def test_orthogonal_is_that_of_torch() -> None:
    """torch orthogonalizes in bfloat16, so that directions are compared. Its LR, decay and momentum are exact."""
    w, g = draw("w", (24, 24)) + 4 * torch.eye(24), draw("g", (24, 24)) + 4 * torch.eye(24)
    parameter = torch.nn.Parameter(w.clone())
    parameter.grad = g.clone()
    torch.optim.Muon([parameter], lr=0.02, weight_decay=0.5, momentum=0.95).step()
    of_torch = ((1 - 0.02 * 0.5) * w - parameter.detach()) / 0.02
    ours = orthogonal((g * (0.05 + 0.95 * 0.05)).unsqueeze(0))[0]
    assert torch.nn.functional.cosine_similarity(of_torch.flatten(), ours.flatten(), 0) > 0.999
    assert of_torch.norm() == pytest.approx(ours.norm().item(), rel=0.02)
    stack = torch.stack([g, g.T, 2 * g])
    assert torch.equal(orthogonal(stack)[1], orthogonal(g.T.unsqueeze(0))[0])


def test_a_vector_is_refused_by_its_role() -> None:
    with pytest.raises(HpxferError, match=r"role attn_q must be a matrix, got scale of size 8"):
        made("muon", [0.1], [ParameterSpec(name="scale", role="attn_q", size=(8,))])
