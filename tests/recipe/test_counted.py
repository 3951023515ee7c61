"""A count of a target shape that is not the model's is refused: its name, what it is, and what was given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from hf_models import ATTENTION, BIASES, COMMON, GLM, GPT2, MLA, MOE, PLAIN_ROPE, QWEN, SHARED
from own_model import ALL_ROLES, OwnGPT
from torch import nn
from torch.distributed.tensor import Shard

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe
from hpxfer.recipe.known_models import known_gate
from hpxfer.scaling.shape import Shape

OWN = Shape(width=32, depth=4, num_experts=4, num_active=2, expert_width=16, head_dim=16, num_shared=2, shared_width=24)
ROLES = {pattern: role for pattern, role in ALL_ROLES.items() if not role.startswith(("dense", "hidden"))}
ROLES = {pattern: role for pattern, role in ROLES.items() if not pattern.endswith("gate.weight")}


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def anywhere(shape: Shape | dict[str, Any], gate: str = "sigmoid", scale: str = "1/d_head") -> Recipe:
    """Return a recipe whose base is the shape, so that only the model can contradict it."""
    return Recipe.from_hps("sp", shape, {"lr": 2.0**-8}, gate=gate, attention_scale=scale)


def own() -> Any:
    return OwnGPT(OWN, 16, 8, anywhere(OWN).forward_multipliers(OWN))


def groups(model: nn.Module, shape: Shape, roles: Any = ROLES) -> list[dict[str, Any]]:
    made = anywhere(shape)
    with multiplied(model, made, shape):
        return made.param_groups(model, roles, shape)


def multiplied(model: nn.Module, made: Recipe, shape: Any) -> Any:
    return made.attach(model, shape, by_hand=made.forward_multipliers(shape))


def changed(**changes: int) -> Shape:
    return Shape(**{**OWN.dims(), **changes})


@pytest.mark.parametrize("wrap", [lambda model: model, compiled, nn.DataParallel])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"depth": 40}, "target_shape: depth must be 4, the blocks of this OwnGPT: .*, got 40; give depth 4"),
        ({"depth": 1}, "depth must be 4, .*, got 1"),
        ({"num_active": 1}, r"num_active must be 2, as blocks\.0\.moe says, got 1"),
        ({"head_dim": 8}, "head_dim must be 16, as the attention of this OwnGPT says, got 8"),
        ({"num_heads": 4}, "num_heads must be 2, as attn_q has 32 features, got 4"),
        ({"kv_heads": 1}, "kv_heads must be 2, as attn_k has 32 features, got 1"),
        ({"num_shared": 3}, r"num_shared must be 2, the tensors blocks\.0\.moe\.shared\.#\.down\.weight that"),
        ({"dense_width": 64}, "dense_width must be left out for this OwnGPT, .* got 64"),
    ],
    ids=str,
)
def test_a_count_that_an_own_model_has_not_is_refused(
    wrap: Callable[[nn.Module], nn.Module], changes: dict[str, int], said: str
) -> None:
    model = wrap(own())
    assert groups(model, OWN)
    with pytest.raises(HpxferError, match=said):
        groups(model, changed(**changes))


HEADS = ["num_heads", "num_attention_heads", "n_heads", "n_head"]


def with_heads(name: str, *, of_config: bool, fused: bool = False) -> Any:
    """Return a model of two heads of 16 whose modules do not state their size."""
    model = own()
    if of_config:
        model.config = SimpleNamespace(**{name: 2})
    for block in model.blocks:
        del block.attention.head_dim
        if not of_config:
            setattr(block.attention, name, 2)
        if fused:  # two heads of queries, one of keys and one of values
            del block.attention.key, block.attention.value
            block.attention.query = nn.Linear(32, 64, bias=False)
    return model


@pytest.mark.parametrize("of_config", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_the_size_of_a_head_follows_from_the_number_of_heads(name: str, of_config: bool) -> None:
    model = with_heads(name, of_config=of_config)
    assert groups(model, OWN)
    assert groups(model, changed(num_heads=2))
    for wrong in ({"head_dim": 8}, {"head_dim": 32}, {"head_dim": 32, "num_heads": 1}):
        with pytest.raises(HpxferError, match=r"head_dim must be 16, .*: 2 heads have 32 features, got"):
            groups(model, changed(**wrong))


def test_fewer_heads_of_keys_in_one_tensor_with_the_queries_change_no_size() -> None:
    model = with_heads("n_head", of_config=False, fused=True)
    roles = {pattern: role for pattern, role in ROLES.items() if role not in ("attn_k", "attn_v")}
    roles["*.attention.query.weight"] = "attn_q+attn_k+attn_v"
    assert groups(model, changed(kv_heads=1), roles)
    with pytest.raises(HpxferError, match="head_dim must be 16"):
        groups(model, changed(head_dim=8, kv_heads=2), roles)


def test_values_may_have_heads_of_another_size_than_queries() -> None:
    model = with_heads("n_head", of_config=False)
    for block in model.blocks:
        block.attention.value, block.attention.out = (nn.Linear(*size, bias=False) for size in ((32, 64), (64, 32)))
    assert groups(model, OWN)


def test_heads_of_one_rank_say_nothing_of_tensors_of_all_ranks() -> None:
    """A module under tensor parallelism may state half the heads, beside DTensors whose sizes are those of all."""
    model = with_heads("n_head", of_config=False)
    for block in model.blocks:
        block.attention.n_head = 1
    with pytest.raises(HpxferError, match="head_dim must be 32"):
        groups(model, OWN)
    for block in model.blocks:
        block.attention.out.weight.placements = (Shard(1),)
    assert groups(model, OWN)


def test_experts_that_are_modules_are_counted() -> None:
    """The routers are those of eight experts, of which half have no module."""
    model = own()
    for block in model.blocks:
        block.moe.router = nn.Linear(32, 8, bias=False)
    with pytest.raises(
        HpxferError, match=r"num_experts must be 4, the tensors blocks\.0\.moe\.experts\.#\.down\.weight"
    ):
        groups(model, changed(num_experts=8))


def test_a_number_of_experts_that_is_the_width_by_chance_is_refused() -> None:
    with pytest.raises(HpxferError, match="must have the target's num_experts 32 as one of its dimensions"):
        groups(own(), changed(num_experts=32, num_active=2))


def test_a_stack_of_experts_is_no_wide_expert() -> None:
    model: Any = transformers.MixtralForCausalLM(transformers.MixtralConfig(**{**MOE, "num_local_experts": 4}))
    shape, roles = hpxfer.shape_of(model), hpxfer.roles(model)
    del model.config
    assert groups(model, shape, roles)
    with pytest.raises(HpxferError, match="expert_width 192"):
        groups(model, Shape(**{**shape.dims(), "expert_width": 192}), roles)


# --- what is right, though a simple count would not say so


def test_layers_that_share_their_tensors_count_as_often_as_they_are_named() -> None:
    model = own()
    model.blocks = nn.ModuleList([model.blocks[0]] * 4)
    assert groups(model, OWN)


def test_a_loop_over_one_block_has_the_depth_of_its_config() -> None:
    model = own()
    model.blocks = model.blocks[:1]
    with pytest.raises(HpxferError, match="depth must be 1"):
        groups(model, OWN)
    model.config = SimpleNamespace(num_hidden_layers=4)
    assert groups(model, OWN)


@pytest.mark.parametrize("depth", [2, 8])
def test_the_depth_of_a_config_wins_over_a_count(depth: int) -> None:
    """Two of four blocks have attention, or each has two FFNs side by side."""
    model = own()
    roles = dict(ROLES)
    if depth == 2:
        for block in model.blocks[2:]:
            del block.attention
    else:
        for block in model.blocks:
            block.dense = copy.deepcopy(block.moe.experts[0])
        roles = {"*.dense.up.weight": "dense_in", "*.dense.down.weight": "dense_out", **roles}
    shape = changed(dense_width=16 if depth == 8 else 0)
    assert groups(model, Shape(**{**shape.dims(), "depth": depth}), roles)  # nothing says otherwise
    model.config = SimpleNamespace(num_hidden_layers=4)
    assert groups(model, shape, roles)
    with pytest.raises(HpxferError, match=f"depth must be 4, .*: its config says, got {depth}"):
        groups(model, Shape(**{**shape.dims(), "depth": depth}), roles)


NAMES_OF_ACTIVE = ["num_active", "n_active", "n_activated_experts", "num_selected", "k"]


@pytest.mark.parametrize("name", NAMES_OF_ACTIVE)
def test_the_active_experts_have_several_names_beside_a_router(name: str) -> None:
    model = own()
    for block in model.blocks:
        del block.moe.num_active
        setattr(block.moe, name, 2)
    assert groups(model, OWN)
    with pytest.raises(HpxferError, match=r"num_active must be 2, as blocks\.0\.moe says, got 1"):
        groups(model, changed(num_active=1))


@pytest.mark.parametrize("name", ["moe_router_topk", "n_activated_experts", "k", "top_k"])
def test_what_a_config_says_of_sampling_is_no_number_of_active_experts(name: str) -> None:
    model = own()
    for block in model.blocks:
        del block.moe.num_active
    model.config = SimpleNamespace(**{name: 3})
    if name in ("k", "top_k"):
        assert groups(model, OWN)
    else:
        with pytest.raises(HpxferError, match="num_active must be 3, as its config says"):
            groups(model, OWN)


@pytest.mark.parametrize("name", ["mtp", "nextn_layers", "blocks"])
def test_blocks_that_predict_further_tokens_are_no_depth(name: str) -> None:
    model = own()
    further = copy.deepcopy(model.blocks[0])
    if name == "blocks":  # as in the checkpoints of DeepSeek-V3: the last of the list, with a map of its own
        further.eh_proj = nn.Linear(64, 32, bias=False)
        model.blocks.append(further)
    else:
        model.add_module(name, nn.ModuleList([further]))
    roles = {"*eh_proj.weight": "attn_q@64", **ROLES} if name == "blocks" else ROLES
    roles = {pattern.replace("blocks.*", "*"): role for pattern, role in roles.items()}
    assert groups(model, OWN, roles)
    with pytest.raises(HpxferError, match="depth must be"):
        groups(model, changed(depth=3), roles)


def test_a_stage_of_a_pipeline_has_fewer_blocks_and_never_more() -> None:
    model = own()
    del model.token_embedding, model.position_embedding, model.blocks[0]
    roles = {pattern: role for pattern, role in ROLES.items() if role not in ("embedding", "position")}
    assert groups(model, OWN, roles)
    with pytest.raises(HpxferError, match=r"depth must be 3, .*, got 2"):
        groups(model, changed(depth=2), roles)


def test_one_tensor_for_all_layers_is_counted_by_its_first_dimension() -> None:
    class Scanned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.readout = nn.Embedding(16, 32), nn.Linear(32, 16, bias=False)
            self.out = nn.Parameter(torch.empty(4, 32, 32))

    roles = {"embedding.weight": "embedding", "readout.weight": "readout", "out": "attn_out"}
    assert groups(Scanned(), Shape(width=32, depth=4, head_dim=16, dense_width=32), roles)
    with pytest.raises(HpxferError, match="depth must be"):
        groups(Scanned(), Shape(width=32, depth=3, head_dim=16, dense_width=32), roles)


# --- models of transformers, without memory, known and unknown, with and without their config

FOUR = {"num_hidden_layers": 4}
MODELS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "GPT2LMHead": ({**GPT2, "n_layer": 4}, {"dense_width": 128}),
    "LlamaForCausalLM": ({**COMMON, **BIASES}, {"dense_width": 48}),
    "Olmo2ForCausalLM": (COMMON, {"dense_width": 48}),
    "Phi3ForCausalLM": (COMMON, {"dense_width": 48}),
    "MixtralForCausalLM": ({**MOE, "num_local_experts": 4}, {"expert_width": 48}),
    "OlmoeForCausalLM": ({**MOE, "num_experts": 4}, {"expert_width": 48}),
    "FlexOlmoForCausalLM": ({**MOE, "num_experts": 4}, {"expert_width": 48}),
    "GraniteMoeForCausalLM": ({**MOE, "num_local_experts": 4, "attention_multiplier": 8**-0.5}, {"expert_width": 48}),
    "GptOssForCausalLM": ({**MOE, "num_local_experts": 4, "head_dim": 8, **PLAIN_ROPE}, {"expert_width": 48}),
    "Qwen3MoeForCausalLM": ({**MOE, **QWEN}, {"expert_width": 16, "dense_width": 48}),
    "Qwen2MoeForCausalLM": ({**MOE, **SHARED}, {"expert_width": 16, "num_shared": 1, "shared_width": 24}),
    "Glm4MoeForCausalLM": (
        {**MOE, **GLM},
        {"expert_width": 16, "dense_width": 48, "num_shared": 1, "shared_width": 16},
    ),
    "DeepseekV3ForCausalLM": (
        {**MOE, **MLA},
        {"expert_width": 16, "dense_width": 48, "num_shared": 1, "shared_width": 16},
    ),
}
WRONG = {"depth": 40, "num_experts": 8, "num_active": 1, "expert_width": 8, "dense_width": 24, "head_dim": 16}
WRONG |= {"shared_width": 8, "num_shared": 2, "width": 64, "kv_heads": 1, "num_heads": 8}


@pytest.mark.parametrize("with_config", [True, False], ids=["config", "no config"])
@pytest.mark.parametrize("name", MODELS)
def test_each_wrong_dimension_of_a_model_of_transformers_is_refused(name: str, with_config: bool) -> None:
    options, ffn = MODELS[name]
    kind = name.removesuffix("ForCausalLM").removesuffix("LMHead")
    config = getattr(transformers, f"{kind}Config")(**{**FOUR, **options, "num_hidden_layers": 4})
    with torch.device("meta"):
        model = getattr(transformers, name if name.endswith("LM") else f"{name}Model")(config)
    low_rank = {"*.q_b_proj.weight": "attn_q@12", "*.kv_b_proj.weight": "attn_k+attn_v@8"} if "Deep" in name else {}
    roles = hpxfer.roles(model, extra=low_rank) if low_rank else hpxfer.roles(model)
    experts = {"num_experts": 4, "num_active": 2} if "expert_width" in ffn else {}
    shape = {"width": 32, "depth": 4, "head_dim": 8, **experts, **ffn}
    if not with_config:
        for module in model.modules():
            module.__dict__.pop("config", None)

    def call(given: dict[str, int]) -> None:
        made = anywhere(given, known_gate(config) or "sigmoid", ATTENTION)
        with multiplied(model, made, given):
            made.param_groups(model, roles, given)

    call(shape)
    wrong = {key: value for key, value in WRONG.items() if key in shape or key in ("num_heads", "kv_heads")}
    if low_rank:  # its heads have several sizes, of which none is that of a shape
        wrong = {key: value for key, value in wrong.items() if key not in ("head_dim", "kv_heads")}
    for key, value in wrong.items():
        with pytest.raises(HpxferError):
            call({**shape, key: value})
