"""What a tap is shown of a forward pass, and that it changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gpt_cases import CASES, Case
from plain_gpt import PlainGPT
from tolerances import assert_near
from torch import Tensor

from hpxfer.spec.blocks import moe_blocks

Heard = dict[tuple[str, int], tuple[Tensor, Tensor]]


def heard(made: Case) -> Heard:
    found: Heard = {}

    def tap(name: str, block: int, x: Tensor, y: Tensor) -> None:
        assert (name, block) not in found
        found[name, block] = x, y

    losses = made.losses(replace(made.model, tap=tap))
    assert torch.equal(losses, made.losses())
    return found


@pytest.fixture(scope="module")
def mixed() -> tuple[Case, Heard]:
    made = Case(*CASES["mixed"])
    return made, heard(made)


def test_every_part_of_the_model_is_heard_once(mixed: tuple[Case, Heard]) -> None:
    made, found = mixed
    everywhere = {"attn_q", "attn_k", "attn_v", "attn_out", "attention", "stream"}
    routed = {
        "router",
        "gates",
        "moe",
        *(f"{kind}_{m}" for kind in ("expert", "shared") for m in ("in", "gate", "out")),
    }
    dense = {"dense", "dense_in", "dense_gate", "dense_out"}
    moe = moe_blocks(made.shape, made.setting)
    expected = {("embedding", 0), ("final_norm", 0), ("readout", 0)}
    for block in range(made.shape.depth):
        expected |= {(name, block) for name in everywhere | (routed if block in moe else dense)}
    assert found.keys() == expected
    assert not any(y.requires_grad for _, y in found.values())


def test_linear_maps_are_heard_with_their_multiplier(mixed: tuple[Case, Heard]) -> None:
    made, found = mixed
    for tensor in made.layout.parameters:
        first = tensor.name, (tensor.blocks or (0,))[0]
        if tensor.role == "embedding" or first not in found or len(tensor.size) != 2:
            continue  # not a matrix product, or one of several experts
        for copy, block in enumerate(tensor.blocks or (0,)):
            x, y = found[tensor.name, block]
            results = []
            for dtype in (torch.float32, torch.float64):
                own = x.to(dtype) @ made.weights[tensor.name][copy].to(dtype)
                if f"{tensor.name}_bias" in made.weights:
                    own = own + made.weights[f"{tensor.name}_bias"][copy].to(dtype).unsqueeze(1)
                if tensor.name in made.model.forward:
                    own = own * made.model.forward[tensor.name].view(2, 1, 1).to(dtype)
                results.append(own)
            assert_near(y, *results, name=f"{tensor.name} of block {block}")


def test_a_branch_is_what_the_stream_gains(mixed: tuple[Case, Heard]) -> None:
    made, found = mixed
    x = found["embedding", 0][1]
    for block in range(made.shape.depth):
        before, after = found["stream", block]
        assert torch.equal(before, x)
        branch = found["moe" if ("moe", block) in found else "dense", block][1]
        assert torch.equal(after, before + found["attention", block][1] + branch)
        x = after
    assert torch.equal(found["final_norm", 0][0], x)
    assert torch.equal(found["readout", 0][0], found["final_norm", 0][1])


@pytest.mark.parametrize("name", ["joint", "softmax in groups", "normalized in groups", "mixed"])
def test_gates_are_those_of_the_active_experts(name: str) -> None:
    made = Case(*CASES[name])
    found = heard(made)
    for layer, block in enumerate(moe_blocks(made.shape, made.setting)):
        logits, gates = found["gates", block]
        assert torch.equal(logits, found["router", block][1] + made.noise_LKE[layer].unsqueeze(1))
        for k in (0, 1):
            plain = PlainGPT(
                shape=made.shape,
                setting=made.setting,
                w={},
                c={},
                route_scale=float(made.model.route_scale[k]),
                bias_LE=made.bias_LKE[:, k],
                noise_LE=made.noise_LKE[:, k],
            )
            for token in range(4):
                expected = plain.gates(layer, logits[k, token])
                active = {expert for expert, gate in enumerate(gates[k, token].tolist()) if gate}
                assert active == expected.keys()
                exact = torch.stack([expected[expert] for expert in sorted(active)])
                assert_near(gates[k, token][sorted(active)], exact, exact.double())


def test_the_gated_rows_of_the_experts_add_up_to_the_branch() -> None:
    """Rows are sorted by expert, then by token. expert_out is shown with its multiplier and without the gate."""
    made = Case(*CASES["joint"])
    found = heard(made)
    for block in range(made.shape.depth):
        gates, rows = found["gates", block][1], found["expert_out", block][1]
        h, y = found["moe", block]
        total = torch.zeros_like(y, dtype=torch.float64)
        for k in (0, 1):
            row = 0
            for expert in range(made.shape.num_experts):
                for token in gates[k, :, expert].nonzero().flatten().tolist():
                    assert torch.equal(found["expert_in", block][0][k, row], h[k, token])
                    total[k, token] += gates[k, token, expert].double() * rows[k, row].double()
                    row += 1
            assert row == rows.shape[1]
        assert_near(y, total.float(), total)
