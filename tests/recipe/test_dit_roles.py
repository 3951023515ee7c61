"""Roles of diffusion transformers by their names: DiT, SiT, tables as in PixArt, and what is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from dit_cases import make_case
from own_dit import OwnDiT
from recipe_data import multiplies
from refusals import refused
from torch import nn

import hpxfer
from hpxfer.recipe import OtherModelWarning
from hpxfer.scaling.shape import Shape

DENSE = Shape(width=64, depth=3, head_dim=16, dense_width=128)
MOE = Shape(width=64, depth=3, head_dim=16, num_experts=8, num_active=4, expert_width=64, num_shared=1, shared_width=64)
# Name, with # for the number of a block or an expert -> role.
OUTSIDE = {
    "x_embedder.proj.weight": "patch_in",
    "x_embedder.proj.bias": "hidden_bias",
    "t_embedder.mlp.0.weight": "time_in",
    "t_embedder.mlp.0.bias": "hidden_bias",
    "t_embedder.mlp.2.weight": "time_out",
    "t_embedder.mlp.2.bias": "hidden_bias",
    "y_embedder.embedding_table.weight": "label",
    "pos_embed": "position",
    "final_layer.adaLN_modulation.1.weight": "final_modulation",
    "final_layer.adaLN_modulation.1.bias": "final_bias",
    "final_layer.linear.weight": "readout",
    "final_layer.linear.bias": "final_bias",
}
BLOCK = {
    "attn.qkv.weight": "attn_q+attn_k+attn_v",
    "attn.qkv.bias": "hidden_bias",
    "attn.proj.weight": "attn_out",
    "attn.proj.bias": "hidden_bias",
    "adaLN_modulation.1.weight": "modulation",
    "adaLN_modulation.1.bias": "hidden_bias",
}
OF_DENSE = {
    f"mlp.{name}.{kind}": role for name, role in (("fc1", "dense_in"), ("fc2", "dense_out")) for kind in ("weight",)
}
OF_MOE = {
    "moe.router.weight": "router",
    "moe.router_bias": "router_bias",
    **{
        f"moe.{folder}.#.{name}.weight": f"{kind}_{part}"
        for folder, kind in (("experts", "expert"), ("shared", "shared"))
        for name, part in (("up", "in"), ("gate", "gate"), ("down", "out"))
    },
}


def role_of(model: nn.Module) -> dict[str, str]:
    """Return name -> role of each tensor, with # for numbers of blocks and experts."""
    found = hpxfer.roles(model)
    assert not found.unmatched
    named = {name: match.role for match in found.matches for name in match.names}
    return {re.sub(r"(blocks|experts|shared)\.\d+", r"\1.#", name): role for name, role in named.items()}


@pytest.mark.parametrize("shape", [DENSE, MOE], ids=["dense", "moe"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_each_tensor_of_a_dit_has_its_role(shape: Shape, wrapped: bool) -> None:
    model: nn.Module = OwnDiT(shape, biases=True, swiglu=True)
    ffn = OF_MOE if shape.num_experts else OF_DENSE
    biases = {
        re.sub("weight$", "bias", name): "hidden_bias"
        for name in ffn
        if name.endswith("weight") and "router" not in name
    }
    expected = {**OUTSIDE, **{f"blocks.#.{name}": role for name, role in {**BLOCK, **ffn, **biases}.items()}}
    if wrapped:  # as the transformer of a module with a loss
        model = nn.ModuleDict({"net": model})
        expected = {f"net.{name}": role for name, role in expected.items()}
    assert role_of(model) == expected


def test_the_same_names_are_no_roles_without_modulations() -> None:
    model = OwnDiT(DENSE)
    for block in model.blocks:
        del block.adaLN_modulation
    unmatched = set(hpxfer.roles(model).unmatched)
    assert {name for name, role in OUTSIDE.items() if role not in ("hidden_bias", "position")} <= unmatched


@pytest.mark.filterwarnings("ignore:the target", "ignore::hpxfer.recipe.OtherModelWarning")
@pytest.mark.parametrize("positions", ["frozen", "buffer", "learned"])
def test_a_fixed_table_of_positions_stays_and_a_learned_one_starts_anew(positions: str) -> None:
    case, model = make_case("dense"), OwnDiT(DENSE, positions=positions)
    before, roles = model.pos_embed.detach().clone(), hpxfer.roles(model)
    multiplies(model, case.recipe, DENSE)
    case.recipe.init_(model, roles, DENSE)
    trained = {name for group in case.recipe.param_groups(model, roles, DENSE) for name in group["names"]}
    assert torch.equal(before, model.pos_embed) == (positions != "learned")
    assert ("pos_embed" in trained) == (positions == "learned")
    assert "t_embedder.mlp.0.weight" in trained


@pytest.mark.filterwarnings("ignore:the target")
def test_patches_and_times_start_by_their_own_fan_in_and_what_differs_from_the_base_is_said() -> None:
    recipe, wide = (
        make_case("dense").recipe,
        OwnDiT(DENSE, biases=False, frequencies=256, channels=4, positions="learned"),
    )
    multiplies(wide, recipe, DENSE)
    with pytest.warns(OtherModelWarning) as caught:
        found = {row.name: row for row in recipe.explain(wide, None, DENSE).rows}
    text = "".join(str(one.message) for one in caught if one.category is OtherModelWarning)
    assert "t_embedder.mlp.0.weight: its fan-in is 256, that of the base 64" in text
    assert "x_embedder.proj.weight: its fan-in is 64, that of the base 16" in text
    assert "positions: a fixed table at the base, learned positions in the target" in text
    assert "biases" not in text
    assert found["t_embedder.mlp.0.weight"].init == pytest.approx(128**-0.5)
    assert found["x_embedder.proj.weight"].init == pytest.approx(64**-0.5)
    assert found["final_layer.adaLN_modulation.1.weight"].init == pytest.approx(math.sqrt(1 / 64) * 0.8)


class Tables(nn.Module):
    """A block as in PixArt: one modulation for all blocks, and a table of each."""

    def __init__(self, block: Any, width: int) -> None:
        super().__init__()
        self.attn, self.mlp = block.attn, block.mlp
        self.scale_shift_table = nn.Parameter(torch.randn(6, width))


def with_tables() -> nn.Module:
    model = OwnDiT(DENSE)
    model.blocks = nn.ModuleList(Tables(block, 64) for block in model.blocks)
    model.t_block = nn.Sequential(nn.SiLU(), nn.Linear(64, 6 * 64))
    del model.final_layer.adaLN_modulation
    model.final_layer.scale_shift_table = nn.Parameter(torch.randn(2, 64))
    return model


@pytest.mark.filterwarnings("ignore:the target", "ignore::hpxfer.recipe.OtherModelWarning")
def test_tables_as_in_pixart_are_biases_of_modulations_and_a_guess() -> None:
    model, recipe = with_tables(), make_case("dense").recipe
    found = role_of(model)
    assert found["blocks.#.scale_shift_table"] == "hidden_bias"
    assert found["final_layer.scale_shift_table"] == "final_bias"
    assert (found["t_block.1.weight"], found["t_block.1.bias"]) == ("final_modulation", "final_bias")
    guesses = hpxfer.roles(model).guesses
    assert sum("table" in guess or "t_block" in guess for guess in guesses) == 3
    multiplies(model, recipe, DENSE)
    recipe.init_(model, hpxfer.roles(model), DENSE)
    assert not model.blocks[0].scale_shift_table.any()
    # Its LR is that of an input, at any width (arXiv 2505.15270).
    lrs = {
        name: group["lr"] for group in recipe.param_groups(model, hpxfer.roles(model), DENSE) for name in group["names"]
    }
    assert lrs["blocks.0.scale_shift_table"] == lrs["x_embedder.proj.weight"] == 2 * lrs["blocks.0.attn.proj.weight"]


def _stand_in(name: str, *names: str) -> nn.Module:
    """Return a model whose class has this name and whose tensors have these."""
    root = type(name, (nn.Module,), {})()
    for one in names:
        module, (*path, last) = root, one.split(".")
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module._modules[part]
        module.register_parameter(last, nn.Parameter(torch.zeros(8, 8)))
    return root


ATTENTION = [f"transformer_blocks.0.attn1.{name}.weight" for name in ("to_q", "to_k", "to_v", "to_out.0")]
TIMES = [f"timestep_embedder.linear_{number}.weight" for number in (1, 2)]
DIFFUSERS = {
    "DiTTransformer2DModel": (
        "an embedder of times and classes of its own",
        [*(f"transformer_blocks.0.norm1.emb.{name}" for name in (*TIMES, "class_embedder.embedding_table.weight"))],
    ),
    "PixArtTransformer2DModel": (
        "reads text by cross-attention",
        [
            "transformer_blocks.0.scale_shift_table",
            "transformer_blocks.0.attn2.to_q.weight",
            "caption_projection.linear_1.weight",
        ],
    ),
    "SD3Transformer2DModel": (
        "joins the tokens of text and image",
        [
            "transformer_blocks.0.norm1.linear.weight",
            "transformer_blocks.0.attn.add_q_proj.weight",
            "context_embedder.weight",
        ],
    ),
}


@pytest.mark.parametrize("name", DIFFUSERS)
def test_models_of_diffusers_are_refused_with_a_reason(name: str) -> None:
    why, names = DIFFUSERS[name]
    refused(rf"got none for \d+ of a {name}: .*{why}", hpxfer.roles, _stand_in(name, *names, *ATTENTION))
    extra = dict.fromkeys([*names, *ATTENTION], "attn_q")
    assert not hpxfer.roles(_stand_in(name, *names, *ATTENTION), extra).unmatched
    assert hpxfer.roles(_stand_in("Another", *names, *ATTENTION)).unmatched


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("DiTTransformer2DModel", {"num_embeds_ada_norm": 10}),
        ("PixArtTransformer2DModel", {"caption_channels": 8, "cross_attention_dim": 32}),
        (
            "SD3Transformer2DModel",
            {"joint_attention_dim": 32, "caption_projection_dim": 32, "pooled_projection_dim": 8},
        ),
    ],
)
def test_installed_models_of_diffusers_are_refused(name: str, size: dict[str, int]) -> None:
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    heads = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "sample_size": 8, "in_channels": 4}
    refused(f"of a {name}", hpxfer.roles, getattr(diffusers, name)(**heads, **size))
