"""A user's own module that is given the forward multipliers computes what the stacked GPT does, with every option."""

from __future__ import annotations

import pytest
import torch
from gpt_cases import CASES, Case
from own_model import OwnGPT, roles_of
from tolerances import is_near
from torch import Tensor

from hpxfer.spec.blocks import moe_blocks

# Tensor of the stacked model -> module of the own one.
OUTSIDE = {"embedding": "token_embedding", "position": "position_embedding", "final_norm": "norm", "readout": "head"}
INSIDE = {
    "attn_norm": "norm1",
    "ffn_norm": "norm2",
    "attn_q": "attention.query",
    "attn_k": "attention.key",
    "attn_v": "attention.value",
    "attn_out": "attention.out",
    "router": "moe.router",
}
PARTS = {"in": "up", "gate": "gate", "out": "down"}
OPTIONS = ("joint", "tied", "gains and biases", "softmax", "normalized", "swiglu", "shared", "dense", "mixed")


def own(made: Case, trial: int, dtype: torch.dtype, *, left_out: str | None = None) -> OwnGPT:
    """Return the user's model with the weights, biases and multipliers of one trial, except for one multiplier."""
    setting, shape = made.setting, made.shape
    scale = shape.head_dim if setting.attention_scale == "1/d_head" else shape.head_dim**0.5
    multipliers = {role: float(c[trial]) for role, c in made.model.forward.items()}
    multipliers |= {"attn_logits": 1 / scale}
    if setting.gate != "sigmoid":
        multipliers |= {"route_scale": float(made.model.route_scale[trial])}
    model = OwnGPT(
        shape,
        setting.vocab_size,
        setting.context,
        multipliers | ({} if left_out is None else {left_out: 1.0}),
        biases=setting.biases,
        tied=setting.tied_embeddings,
        gate=setting.gate,
        swiglu=setting.ffn == "swiglu",
        moe_every=setting.moe_every,
    )
    missing, unexpected = model.load_state_dict(state_dict(made, trial), strict=False)
    assert not unexpected
    assert all("norm" in name or name == "head.weight" for name in missing), missing
    return model.to(dtype)


def state_dict(made: Case, trial: int) -> dict[str, Tensor]:
    """Return one trial's tensors by their names in the user's model, where matrices are [out, in]."""
    out = {}
    for tensor in made.layout.parameters:
        base = tensor.name.removesuffix("_bias")
        kind = "weight" if base == tensor.name else "bias"
        for copy, block in enumerate(tensor.blocks or (None,)):
            for name, part in places(base, block, made.weights[tensor.name][copy][trial].detach()):
                is_matrix = part.ndim == 2 and base not in ("embedding", "position")
                out[f"{name}.{kind}"] = part.T if is_matrix else part
    for layer, block in enumerate(moe_blocks(made.shape, made.setting)):
        out[f"blocks.{block}.moe.router_bias"] = made.bias_LKE[layer, trial]
    return out


def places(base: str, block: int | None, value: Tensor) -> list[tuple[str, Tensor]]:
    """Return module name -> its part of a tensor."""
    if block is None:
        return [(OUTSIDE[base], value)]
    if base in INSIDE:
        return [(f"blocks.{block}.{INSIDE[base]}", value)]
    kind, _, part = base.partition("_")
    if kind == "dense":
        return [(f"blocks.{block}.dense.{PARTS[part]}", value)]
    folder = "experts" if kind == "expert" else "shared"
    return [(f"blocks.{block}.moe.{folder}.{number}.{PARTS[part]}", tensor) for number, tensor in enumerate(value)]


def losses(made: Case, dtype: torch.dtype, *, left_out: str | None = None) -> Tensor:
    """Return losses [K, T] of the user's model."""
    rows = []
    for trial in (0, 1):
        logits = own(made, trial, dtype, left_out=left_out)(made.inputs[trial]).flatten(0, 1)
        rows.append(torch.nn.functional.cross_entropy(logits, made.targets[trial].flatten(), reduction="none"))
    return torch.stack(rows).detach()


@pytest.mark.parametrize("name", OPTIONS)
def test_losses_are_those_of_the_stacked_model(name: str) -> None:
    made = Case(*CASES[name])
    assert is_near(made.losses(noise=False), losses(made, torch.float32), losses(made, torch.float64))


@pytest.mark.parametrize("left_out", ["router", "expert_out", "shared_out", "dense_out", "route_scale"])
def test_a_multiplier_that_the_module_leaves_out_is_seen(left_out: str) -> None:
    made = Case(*CASES["mixed"])
    wrong = [losses(made, dtype, left_out=left_out) for dtype in (torch.float32, torch.float64)]
    assert not is_near(made.losses(noise=False), *wrong)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_parameter_has_one_role(name: str) -> None:
    made = Case(*CASES[name])
    found = set(roles_of(own(made, 0, torch.float32)).values())
    expected = {tensor.role for tensor in made.layout.parameters} | {"norm", "final_norm"}
    expected |= {"router_bias"} if made.shape.num_experts else set()
    assert found == expected | ({"readout"} if not made.setting.tied_embeddings else set())
