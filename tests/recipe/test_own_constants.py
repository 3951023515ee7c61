"""Constants and gates of a config: what agrees with the recipe stays, and all else is named."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from hf_models import ATTENTION, COMMON, GLM, MLA, MOE, make
from torch import nn

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import OtherModelWarning, Recipe, UnattachedWarning
from hpxfer.recipe.known_models import known_gate
from hpxfer.recipe.own_constants import own_constants
from hpxfer.registry import registry

GRANITE = {**MOE, "num_local_experts": 4, "attention_multiplier": 8**-0.5}
SHAPE = {"width": 32, "depth": 2, "head_dim": 8, "num_experts": 4, "num_active": 2, "expert_width": 48}
GLM_SHAPE = {**SHAPE, "expert_width": 16, "dense_width": 48, "num_shared": 1, "shared_width": 16}


def granite(**changes: Any) -> nn.Module:
    return transformers.GraniteMoeForCausalLM(transformers.GraniteMoeConfig(**{**GRANITE, **changes}))


def by_hand(shape: dict[str, int], gate: str = "normalized_softmax", **options: Any) -> Recipe:
    return Recipe.from_hps("sp", shape, {"lr": 2.0**-8}, gate=gate, attention_scale=ATTENTION, **options)


def said(model: nn.Module, made: Recipe, shape: Any) -> list[str]:
    """Return the differences that the warning lists, in the call that uses them, with every multiplier by hand."""
    handle = made.attach(model, shape, by_hand=made.forward_multipliers(shape))
    with handle, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made.param_groups(model, hpxfer.roles(model), shape)
    assert all(one.category is OtherModelWarning for one in seen)
    return [line.strip() for one in seen for line in str(one.message).splitlines()[1:-1]]


def test_each_constant_that_base_and_numbers_have_not_is_named() -> None:
    lines = said(granite(residual_multiplier=0.22, logits_scaling=6.0), by_hand(SHAPE), SHAPE)
    assert lines == [
        "logits_scaling: none at the base, 6 in the target, on readout",
        "residual_multiplier: none at the base, 0.22 in the target, on attn_out, experts, shared_out, dense_out",
    ]
    assert said(granite(), by_hand(SHAPE), SHAPE) == []
    made = by_hand(GLM_SHAPE, gate="normalized_sigmoid", options={"route_scale": 1.5})
    lines = said(make("glm4_moe", routed_scaling_factor=2.5), made, GLM_SHAPE)
    assert lines == ["routed_scaling_factor: 1.5 at the base, 2.5 in the target, on route_scale"]
    stated = by_hand(SHAPE, options={"residual_multiplier": 0.22, "logits_scaling": 6.0})
    assert said(granite(residual_multiplier=0.22, logits_scaling=6.0), stated, SHAPE) == []
    assert "residual_multiplier: none" in said(granite(residual_multiplier=0.3, logits_scaling=6.0), stated, SHAPE)[0]
    hps = {"lr": 2.0**-8, "residual_scale": 0.22, "readout.forward_mult": 0.25}
    scaled = Recipe.from_hps("completep-moe", SHAPE, hps, gate="normalized_softmax", attention_scale=ATTENTION)
    assert said(granite(residual_multiplier=0.22, logits_scaling=4.0), scaled, SHAPE) == []
    made, wrong = by_hand(SHAPE), granite(attention_multiplier=1.0)
    assert said(wrong, made, SHAPE) == ["attention_multiplier: q.k times 0.353553 by the recipe, 1 in the target"]
    wrong = granite(attention_multiplier=1.0)
    rest = [key for key in made.forward_multipliers(SHAPE) if key != "attn_logits"]
    with made.attach(wrong, SHAPE, [("*.self_attn", "attn_logits")], by_hand=rest):
        made.param_groups(wrong, hpxfer.roles(wrong), SHAPE)  # hooks have set what the config says


@pytest.mark.parametrize("scale", [2.5, 1.0])
def test_a_model_whose_config_multiplies_as_the_base_is_multiplied_once(scale: float) -> None:
    """The trained product is 2.5. The hooks do what the config leaves to do."""
    made = by_hand(GLM_SHAPE, gate="normalized_sigmoid", options={"route_scale": 2.5})
    model = make("glm4_moe", routed_scaling_factor=scale).eval()
    moe: Any = model.model.layers[1].mlp
    x = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = (moe(x) - moe.shared_experts(x)) / scale
        numbers = made.forward_multipliers(GLM_SHAPE)
        with made.attach(model, GLM_SHAPE):
            routed = moe(x) - moe.shared_experts(x)
        assert numbers["expert_out"] * numbers["route_scale"] == pytest.approx(2.5)
        torch.testing.assert_close(routed, 2.5 * plain)
    with pytest.warns(UnattachedWarning, match="shared_out") as seen:
        made.param_groups(model, hpxfer.roles(model), GLM_SHAPE)
    assert ("route_scale" in str(seen[0].message).partition(", and trains")[0]) == (scale == 1.0)


def test_a_factor_that_changes_with_the_shape_is_no_constant_that_the_base_has_too() -> None:
    own = {"scale_depth": 1.4, "dim_model_base": 16, "use_mup": True}
    model = granite()
    model.config.update(own)
    assert said(model, by_hand(SHAPE, options=own), SHAPE) == []
    base = {**SHAPE, "width": 16, "depth": 1}
    rule = "the model multiplies by a factor of its own that changes with the"
    assert said(model, by_hand(base, options=own), SHAPE) == [
        f"scale_depth: {rule} depth, 1 at the base, 2 in the target, on attn_out, experts, shared_out, dense_out",
        f"dim_model_base: {rule} width, 16 at the base, 32 in the target, on readout",
        f"use_mup: {rule} width, 16 at the base, 32 in the target",
    ]


class Around(nn.Module):
    """A module around a model, of no known library."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner, self.loss = model, nn.CrossEntropyLoss()


def test_a_module_around_a_model_hides_neither_its_constants_nor_its_gate() -> None:
    made = by_hand(SHAPE)
    bare = said(granite(residual_multiplier=0.22), made, SHAPE)
    assert bare
    assert said(Around(granite(residual_multiplier=0.22)), made, SHAPE) == bare
    assert said(Around(make("mixtral")), made, SHAPE) == []
    with pytest.raises(
        HpxferError, match="must have the gate of the recipe's base model, sigmoid, got normalized_soft"
    ):
        said(Around(make("mixtral")), by_hand(SHAPE, gate="sigmoid"), SHAPE)


class Slots:
    __slots__ = ("route_scale",)

    def __init__(self) -> None:
        self.route_scale = 2.5


@pytest.mark.parametrize(
    ("holder", "options"),
    [
        ("model_args", {"moe": {"route_scale": 2.5}}),
        ("hparams", SimpleNamespace(moe_args=SimpleNamespace(route_scale=2.5))),
        ("cfg", type("Options", (), {"route_scale": 2.5})),
        *(("cfg", type("Options", (), {"route_scale": 2.5})()), ("hparams", Slots())),
    ],
)
def test_options_may_be_nested_and_of_a_class(holder: str, options: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    setattr(model[0], holder, options)
    assert [(one.name, one.value) for one in own_constants(model)] == [("route_scale", 2.5)]


def test_modules_have_constants_of_their_own_if_no_config_has_them() -> None:
    model: Any = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("router", "attn", "indexer", "vision")})
    model["router"].route_scale = model["vision"].residual_scale = model["indexer"].softmax_scale = 0.5
    model["attn"].softmax_scale, model["attn"].scaling_of_rope = 0.25, 8.0
    assert [(one.name, one.value) for one in own_constants(model)] == [("route_scale", 0.5), ("softmax_scale", 0.25)]
    model.config = SimpleNamespace(routed_scaling_factor=0.5, vision_config={"residual_multiplier": 2.0})
    assert [one.name for one in own_constants(model)] == ["routed_scaling_factor", "softmax_scale"]


SOFTCAPS = ("attn_logit_softcapping", "final_logit_softcapping")
FALCON = {"key_multiplier": 0.5, "ssm_multipliers": [1.0, 1.0, 1.0, 1.0, 0.3], "mlp_multipliers": [0.9, 0.2]}
CONFIGS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "Llama": (COMMON, set()),
    "Qwen3Moe": (MOE, set()),
    "Glm4Moe": ({**MOE, **GLM}, set()),
    "Llama4Text": ({**MOE, "head_dim": 8}, set()),
    "T5": ({}, set()),
    "DeepseekV3": ({**MOE, **MLA, "routed_scaling_factor": 2.5}, {"routed_scaling_factor"}),
    "Cohere": (COMMON, {"logit_scale"}),
    "Gemma2": ({**COMMON, "head_dim": 8}, {*SOFTCAPS, "query_pre_attn_scalar"}),
    "MiniCPM3": (COMMON, {"scale_depth", "dim_model_base"}),
    "FalconH1": ({**FALCON, "lm_head_multiplier": 0.1}, {*FALCON, "lm_head_multiplier"}),
    "MiniMax": ({**MOE, "full_attn_alpha_factor": 3.5}, {"full_attn_alpha_factor"}),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_constants_of_a_class_of_transformers(name: str) -> None:
    options, expected = CONFIGS[name]
    config = getattr(transformers, f"{name}Config")(**options)
    assert {one.name for one in own_constants(config)} == expected


@pytest.mark.parametrize(
    ("name", "value", "is_one"),
    [
        *(("output_multiplier_scale", 0.57, True), ("embedding_multiplier_scale", 78.4, True)),
        *(("mup_width_multiplier", 4.0, True), ("mup_output_alpha", 2.0, True), ("residual_scaling", 0.5, True)),
        *(("router_logit_softcap", 30.0, True), ("router_logit_softcap", 0.0, False)),
        *(("attention_out_multiplier", 1.0, False), ("branch_multipliers", [1.0, 0.5], True)),
        *(("scale_embedding", True, False), ("rope_scaling_factor", 8.0, False), ("initializer_scale", 0.02, False)),
        *(("ffn_dim_multiplier", 1.3, False), ("router_aux_loss_scale", 0.1, False)),
        ("embedding_multiplier", 12.0, False),  # the embedding's numbers undo it
        *(("temperature", 0.7, False), ("mup_enabled", True, True), ("mup_enabled", False, False)),
        *(("scale_attn_by_inverse_layer_idx", True, True), ("clip_qkv", 1.0, True), ("clip_qkv", None, False)),
        ("grad_scale", 2.0, False),
    ],
)
def test_a_name_says_whether_a_number_scales(name: str, value: Any, is_one: bool) -> None:
    model = nn.Linear(2, 2)
    for holder in (SimpleNamespace(**{name: value}), {name: value}):
        model.config = holder
        assert bool(own_constants(model)) == is_one


EXPERTS = {"num_local_experts": 4}
GRANITE_SHARED = {**EXPERTS, "shared_intermediate_size": 16}
HYBRID = {**GRANITE_SHARED, "layer_types": ["attention"] * 2, "mamba_n_heads": 8}
DOTS = {"n_routed_experts": 4, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
LFM = {"num_experts": 4, "moe_intermediate_size": 16, "num_dense_layers": 0, "layer_types": ["full_attention"] * 2}


@pytest.mark.parametrize(
    ("name", "options", "gate"),
    [
        ("GraniteMoeHybrid", HYBRID, "normalized_softmax"),
        ("HunYuanMoEV1", {"num_experts": 4, "moe_topk": 2, "head_dim": 8}, "normalized_softmax"),
        ("MiniMax", EXPERTS, "normalized_softmax"),
        ("Dots1", {**DOTS, "norm_topk_prob": True}, "normalized_sigmoid"),
        ("Dots1", {**DOTS, "norm_topk_prob": False}, "sigmoid"),
        ("Lfm2Moe", {**LFM, "norm_topk_prob": True}, "normalized_sigmoid"),
        ("Lfm2Moe", {**LFM, "norm_topk_prob": False}, "sigmoid"),
    ],
)
def test_a_known_gate_is_what_the_router_computes(name: str, options: dict[str, Any], gate: str) -> None:
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**{**MOE, **options})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    sums: list[torch.Tensor] = []

    def keep(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = [one for one in (*args, *named.values()) if torch.is_tensor(one) and one.is_floating_point()]
        sums.append(given[-1].sum(-1))

    for part in model.modules():
        if type(part).__name__.endswith("Experts"):
            part.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model(torch.arange(8)[None])
    assert known_gate(model) == gate
    assert len(sums) == 2
    to_one = all(torch.allclose(each, torch.ones_like(each), atol=1e-4) for each in sums)
    assert to_one == (registry("gate").get(gate).sums_to_one_over == "active")
