"""A target shape that is not the model's is refused, wherever a tensor, a count or a config shows it."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import hf_models as hf
import pytest
import torch
import transformers
from own_model import ALL_ROLES, OwnGPT
from recipe_data import multiplies
from refusals import refused
from torch import nn
from torch.distributed.tensor import Shard

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe
from hpxfer.recipe.known_models import known_gate
from hpxfer.scaling.shape import Shape

MOE = {"num_experts": 4, "num_active": 2, "expert_width": 16, "num_shared": 2, "shared_width": 24}
DEEP = Shape(width=32, depth=4, head_dim=16, **MOE)
OWN = replace(DEEP, depth=2, dense_width=48)
ROLES = {pattern: role for pattern, role in ALL_ROLES.items() if role != "hidden_bias"}


def anywhere(base: Shape | dict[str, Any], gate: str = "normalized_softmax") -> Recipe:
    """Return a recipe that has a way to every shape with the same heads, so that only the model can contradict it."""
    return Recipe.from_hps("sp", base, {"lr": 2.0**-8}, gate=gate, attention_scale=hf.ATTENTION)


def own() -> nn.Module:
    model = OwnGPT(OWN, 16, 8, anywhere(OWN).forward_multipliers(OWN), swiglu=True, moe_every=2)
    return multiplies(model, anywhere(OWN), OWN)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts": 8}, r"blocks\.1\.moe\.router\.weight \(router\) must have the target's num_experts 8 as one"),
        ({"expert_width": 32}, r"experts\.\*\.gate\.weight \(expert_gate\) must have width 32 x expert_width 32 elem"),
        ({"shared_width": 16}, r"shared\.\*\.down\.weight \(shared_out\) must have width 32 x shared_width 16 elem"),
        ({"dense_width": 24}, r"blocks\.0\.dense\.up\.weight \(dense_in\) must have width 32 x dense_width 24 elem"),
    ],
)
def test_the_tensors_of_an_own_model_show_another_shape(changes: dict[str, int], said: str) -> None:
    model, made = own(), anywhere(OWN)
    assert made.param_groups(model, ROLES, OWN)
    target = {**OWN.dims(), **changes}
    before = [tensor.clone() for tensor in model.parameters()]
    for call in (made.param_groups, made.init_, made.explain):
        refused(said, call, model, ROLES, target)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_other_layouts_of_the_same_experts_are_taken() -> None:
    """Experts side by side in one matrix, two shared experts as one FFN, attention and FFN as one."""
    sizes = {"side_by_side": (4 * 16, 32), "shared": (32, 2 * 24), "beside_attention": (3 * 32 + 48, 32)}
    roles = {"side_by_side": "expert_in", "shared": "shared_out", "beside_attention": "attn_q+attn_k+attn_v+dense_in"}
    layouts = nn.ParameterDict({name: nn.Parameter(torch.zeros(size)) for name, size in sizes.items()})
    model = multiplies(layouts, anywhere(OWN), OWN)
    assert anywhere(OWN).param_groups(model, roles, OWN)
    refused("side_by_side", anywhere(OWN).param_groups, model, roles, {**OWN.dims(), "num_experts": 7})


@pytest.mark.parametrize(("name", "given", "has"), [("depth", 3, 2), ("head_dim", 32, 16), ("num_active", 1, 2)])
def test_what_no_tensor_shows_the_config_of_a_known_model_does(name: str, given: int, has: int) -> None:
    model = hf.mixtral_of_width(64)
    shape = hpxfer.shape_of(model, batch_tokens=64, steps=9)  # which are no part of a model
    assert hf.by_hand(shape).param_groups(model, hpxfer.roles(model), shape)
    target = {**shape.dims(), name: given}
    made = anywhere(Shape(**{**shape.dims(), "head_dim": target["head_dim"]}))
    said = f"must be the shape of this mixtral model, whose config says {name} {has}, got {name} {given};"
    for call in (made.attach, lambda model, target: made.param_groups(model, hpxfer.roles(model), target)):
        refused(said, call, model, target)


def test_heads_that_follow_from_the_width_may_be_given_and_replaced_ffns_too() -> None:
    model = hf.mixtral_of_width(64, num_key_value_heads=2)
    shape = hpxfer.shape_of(model).dims()
    for heads in ({"num_heads": 4}, {"num_heads": 4, "kv_heads": 2}):
        target = Shape(**{**shape, **heads})
        assert anywhere(target).param_groups(model, hpxfer.roles(model), target)
    wrong = Shape(**{**shape, "num_heads": 2})
    refused("config says num_heads 4, got num_heads 2;", anywhere(wrong).attach, model, wrong)
    # Its config still tells of the FFNs that were there.
    model: Any = hf.make("llama", attention_bias=False, mlp_bias=False)
    for layer in model.model.layers:
        layer.mlp = hf.make("mixtral", intermediate_size=48).model.layers[0].mlp
    shape = Shape(width=32, depth=2, num_experts=4, num_active=2, expert_width=48, head_dim=8)
    extra = {"*.mlp.gate.weight": "router", "*.gate_up_proj": "expert_in+expert_gate"}
    roles = hpxfer.roles(model, extra={**extra, "*.experts.down_proj": "expert_out"})
    assert hf.by_hand(shape).param_groups(model, roles, shape)
    with pytest.raises(HpxferError, match="whose config says depth 2, got depth 4"):
        hf.by_hand(shape).param_groups(model, roles, {**shape.dims(), "depth": 4})


def test_what_is_no_model_is_refused() -> None:
    made = anywhere(OWN)
    for given in (None, {}, iter(())):
        said = f"model: must be a torch.nn.Module, got {type(given).__name__}"
        for call in (made.param_groups, made.init_, made.explain):
            refused(said, call, given, ROLES, OWN)
        refused(said, hpxfer.roles, given)
        refused(said, made.attach, given, OWN)


DEEP_ROLES = {pattern: role for pattern, role in ALL_ROLES.items() if not role.startswith(("dense", "hidden"))}
DEEP_ROLES = {pattern: role for pattern, role in DEEP_ROLES.items() if not pattern.endswith("gate.weight")}


def deep() -> Any:
    return OwnGPT(DEEP, 16, 8, anywhere(DEEP).forward_multipliers(DEEP))


def groups(model: nn.Module, shape: Shape, roles: Any = DEEP_ROLES) -> list[dict[str, Any]]:
    made = anywhere(shape)
    with made.attach(model, shape, by_hand=made.forward_multipliers(shape)):
        return made.param_groups(model, roles, shape)


def changed(**changes: int) -> Shape:
    return Shape(**{**DEEP.dims(), **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts": 32, "num_active": 2}, "must have the target's num_experts 32 as one of its dimensions"),
        ({"depth": 40}, "target_shape: depth must be 4, the blocks of this OwnGPT: .*, got 40; give depth 4"),
        ({"depth": 1}, "depth must be 4, .*, got 1"),
        ({"num_active": 1}, r"num_active must be 2, as blocks\.0\.moe says, got 1"),
        ({"head_dim": 8}, "head_dim must be 16, as the attention of this OwnGPT says, got 8"),
        ({"num_heads": 4}, "num_heads must be 2, as attn_q has 32 features, got 4"),
        ({"kv_heads": 1}, "kv_heads must be 2, as attn_k has 32 features, got 1"),
        ({"num_shared": 3}, r"num_shared must be 2, the tensors blocks\.0\.moe\.shared\.#\.down\.weight that"),
        ({"dense_width": 64}, "dense_width must be 0, as no tensor of this OwnGPT has a role dense_..., got 64"),
    ],
    ids=str,
)
def test_a_count_that_an_own_model_has_not_is_refused(changes: dict[str, int], said: str) -> None:
    model = nn.DataParallel(deep())
    assert groups(model, DEEP)
    refused(said, groups, model, changed(**changes))


def with_heads(name: str, *, of_config: bool, fused: bool = False) -> Any:
    """Return a model of two heads of 16 whose modules do not state their size."""
    model = deep()
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


@pytest.mark.parametrize(
    ("name", "of_config"),
    [("num_heads", False), ("num_attention_heads", True), ("n_heads", False), ("n_head", True), ("n_head", False)],
)
def test_the_size_of_a_head_follows_from_the_number_of_heads(name: str, of_config: bool) -> None:
    model = with_heads(name, of_config=of_config)
    assert groups(model, DEEP)
    assert groups(model, changed(num_heads=2))
    for wrong in ({"head_dim": 8}, {"head_dim": 32}, {"head_dim": 32, "num_heads": 1}):
        refused(r"head_dim must be 16, .*: 2 heads have 32 features, got", groups, model, changed(**wrong))
    for block in model.blocks:  # values may have heads of another size than queries
        block.attention.value, block.attention.out = (nn.Linear(*size, bias=False) for size in ((32, 64), (64, 32)))
    assert groups(model, DEEP)


def test_heads_of_one_tensor_or_one_rank_say_nothing_wrong() -> None:
    model = with_heads("n_head", of_config=False, fused=True)
    roles = {pattern: role for pattern, role in DEEP_ROLES.items() if role not in ("attn_k", "attn_v")}
    roles["*.attention.query.weight"] = "attn_q+attn_k+attn_v"
    assert groups(model, changed(kv_heads=1), roles)
    refused("head_dim must be 16", groups, model, changed(head_dim=8, kv_heads=2), roles)
    # A module under tensor parallelism may state half the heads, beside DTensors whose sizes are those of all.
    model = with_heads("n_head", of_config=False)
    for block in model.blocks:
        block.attention.n_head = 1
    refused("head_dim must be 32", groups, model, DEEP)
    for block in model.blocks:
        block.attention.out.weight.placements = (Shard(1),)
    assert groups(model, DEEP)


def test_experts_that_are_modules_are_counted_and_a_stack_of_them_is_no_wide_expert() -> None:
    """The routers are those of eight experts, of which half have no module."""
    model = deep()
    for block in model.blocks:
        block.moe.router = nn.Linear(32, 8, bias=False)
    said = r"num_experts must be 4, the tensors blocks\.0\.moe\.experts\.#\.down\.weight"
    refused(said, groups, model, changed(num_experts=8))
    model: Any = hf.make("mixtral")
    shape, roles = hpxfer.shape_of(model), hpxfer.roles(model)
    del model.config
    assert groups(model, shape, roles)
    for wrong in (192, 96):
        refused(f"expert_width {wrong}", groups, model, Shape(**{**shape.dims(), "expert_width": wrong}), roles)


def test_layers_that_share_tensors_are_counted_as_named_or_as_the_config_says() -> None:
    model = deep()
    model.blocks = nn.ModuleList([model.blocks[0]] * 4)
    assert groups(model, DEEP)
    model = deep()
    model.blocks = model.blocks[:1]
    refused("depth must be 1", groups, model, DEEP)
    model.config = SimpleNamespace(num_hidden_layers=4)
    assert groups(model, DEEP)


@pytest.mark.parametrize("depth", [2, 8])
def test_the_depth_of_a_config_wins_over_a_count(depth: int) -> None:
    """Two of four blocks have attention, or each has two FFNs side by side."""
    model = deep()
    roles = dict(DEEP_ROLES)
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


def test_the_active_experts_have_several_names_and_what_a_config_says_of_sampling_is_none() -> None:
    for name in ("num_active", "n_active", "n_activated_experts", "num_selected", "k"):
        model = deep()
        for block in model.blocks:
            del block.moe.num_active
            setattr(block.moe, name, 2)
        assert groups(model, DEEP)
        refused(r"num_active must be 2, as blocks\.0\.moe says, got 1", groups, model, changed(num_active=1))
        for block in model.blocks:
            delattr(block.moe, name)
    for name in ("moe_router_topk", "n_activated_experts"):
        model.config = SimpleNamespace(**{name: 3})
        refused("num_active must be 3, as its config says", groups, model, DEEP)
    for name in ("k", "top_k"):
        model.config = SimpleNamespace(**{name: 3})
        assert groups(model, DEEP)


@pytest.mark.parametrize("name", ["mtp", "nextn_layers", "blocks"])
def test_blocks_that_predict_further_tokens_are_no_depth(name: str) -> None:
    model = deep()
    further = copy.deepcopy(model.blocks[0])
    if name == "blocks":  # as in the checkpoints of DeepSeek-V3: the last of the list, with a map of its own
        further.eh_proj = nn.Linear(64, 32, bias=False)
        model.blocks.append(further)
    else:
        model.add_module(name, nn.ModuleList([further]))
    roles = {"*eh_proj.weight": "attn_q@64", **DEEP_ROLES} if name == "blocks" else DEEP_ROLES
    roles = {pattern.replace("blocks.*", "*"): role for pattern, role in roles.items()}
    assert groups(model, DEEP, roles)
    refused("depth must be", groups, model, changed(depth=3), roles)


def test_a_stage_of_a_pipeline_has_fewer_blocks_and_one_tensor_has_all() -> None:
    model = deep()
    del model.token_embedding, model.position_embedding, model.blocks[0]
    roles = {pattern: role for pattern, role in DEEP_ROLES.items() if role not in ("embedding", "position")}
    assert groups(model, DEEP, roles)
    refused(r"depth must be 3, .*, got 2", groups, model, changed(depth=2), roles)
    scanned = nn.ModuleDict({"embedding": nn.Embedding(16, 32), "readout": nn.Linear(32, 16, bias=False)})
    scanned.out = nn.Parameter(torch.empty(4, 32, 32))
    roles = {"embedding.weight": "embedding", "readout.weight": "readout", "out": "attn_out"}
    assert groups(scanned, Shape(width=32, depth=4, head_dim=16, dense_width=32), roles)
    refused("depth must be", groups, scanned, Shape(width=32, depth=3, head_dim=16, dense_width=32), roles)


# Models of transformers, without memory, known and unknown, with and without their config.

DENSE, WIDE, SMALL = {"dense_width": 48}, {"expert_width": 48}, {"expert_width": 16, "dense_width": 48}
SHARES = {"num_shared": 1, "shared_width": 16}
MODELS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "GPT2LMHead": ({**hf.GPT2, "n_layer": 4}, {"dense_width": 128}),
    "LlamaForCausalLM": ({**hf.COMMON, **hf.BIASES}, DENSE),
    "Olmo2ForCausalLM": (hf.COMMON, DENSE),
    "Phi3ForCausalLM": (hf.COMMON, DENSE),
    "MixtralForCausalLM": ({**hf.MOE, "num_local_experts": 4}, WIDE),
    "OlmoeForCausalLM": ({**hf.MOE, "num_experts": 4}, WIDE),
    "FlexOlmoForCausalLM": ({**hf.MOE, "num_experts": 4}, WIDE),
    "GraniteMoeForCausalLM": ({**hf.MOE, "num_local_experts": 4, "attention_multiplier": 8**-0.5}, WIDE),
    "GptOssForCausalLM": ({**hf.MOE, "num_local_experts": 4, "head_dim": 8, **hf.PLAIN_ROPE}, WIDE),
    "Qwen3MoeForCausalLM": ({**hf.MOE, **hf.QWEN}, SMALL),
    "Qwen2MoeForCausalLM": ({**hf.MOE, **hf.SHARED}, {"expert_width": 16, "num_shared": 1, "shared_width": 24}),
    "Glm4MoeForCausalLM": ({**hf.MOE, **hf.GLM}, {**SMALL, **SHARES}),
    "DeepseekV3ForCausalLM": ({**hf.MOE, **hf.MLA}, {**SMALL, **SHARES}),
}
WRONG = {"depth": 40, "num_experts": 8, "num_active": 1, "expert_width": 8, "dense_width": 24, "head_dim": 16}
WRONG |= {"shared_width": 8, "num_shared": 2, "width": 64, "kv_heads": 1, "num_heads": 8}


@pytest.mark.parametrize("with_config", [True, False], ids=["config", "no config"])
@pytest.mark.parametrize("name", MODELS)
def test_each_wrong_dimension_of_a_model_of_transformers_is_refused(name: str, with_config: bool) -> None:
    options, ffn = MODELS[name]
    kind = name.removesuffix("ForCausalLM").removesuffix("LMHead")
    config = getattr(transformers, f"{kind}Config")(**{**options, "num_hidden_layers": 4})
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
        made = anywhere(given, known_gate(config) or "sigmoid")
        with made.attach(model, given, by_hand=made.forward_multipliers(given)):
            made.param_groups(model, roles, given)

    call(shape)
    wrong = {key: value for key, value in WRONG.items() if key in shape or key in ("num_heads", "kv_heads")}
    if low_rank:  # its heads have several sizes, of which none is that of a shape
        wrong = {key: value for key, value in wrong.items() if key not in ("head_dim", "kv_heads")}
    for key, value in wrong.items():
        with pytest.raises(HpxferError):
            call({**shape, key: value})
