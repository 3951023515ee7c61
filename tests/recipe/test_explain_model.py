"""What a recipe gives a model, tensor by tensor, and in what the model differs from the one that was tuned."""

from __future__ import annotations

import json
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from hf_models import ATTENTION, by_hand, make, mixtral_of_width, with_layout_of_4
from own_model import ROLES, ROLES_WITH_BIASES, OwnGPT
from recipe_data import BASE, TARGET, multiplies, recipe
from refusals import refused
from torch import nn

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import OtherModelWarning, Recipe, UnattachedWarning
from hpxfer.scaling.shape import Shape


def test_every_tensor_has_its_line() -> None:
    made, model = recipe(), OwnGPT(Shape(**TARGET), 16, 8, recipe().forward_multipliers(TARGET))
    model.norm.weight.requires_grad_(False)
    values, before = made.multipliers(TARGET), model.head.weight.clone()
    found = made.explain(model, ROLES, TARGET)
    assert torch.equal(model.head.weight, before)
    rows = {row["name"]: row for row in json.loads(json.dumps(found.to_dict()))}
    buffers = [f"blocks.{i}.moe.router_bias" for i in range(3)]
    assert list(rows) == [*(name for name, _ in model.named_parameters()), *buffers]
    for name, role in (("blocks.1.moe.router.weight", "router"), ("blocks.2.moe.experts.5.down.weight", "expert_out")):
        at = values[role]
        assert rows[name] == {
            "name": name,
            "role": role,
            "size": list(model.get_parameter(name).shape),
            "init": at.init_std,
            "lr": at.lr,
            "eps": at.eps,
            "weight_decay": at.weight_decay,
            "note": None,
        }
        line = next(line for line in str(found).splitlines() if line.split()[:1] == [name])
        assert all(f"{number:.6g}" in line for number in (at.init_std, at.lr, at.eps, at.weight_decay))
    assert (rows["norm.weight"]["init"], rows["norm.weight"]["lr"]) == ("ones", None)
    assert rows["norm.weight"]["note"] == "needs no gradient, so that it is in no group"
    assert rows[buffers[0]]["note"] == "updated by the balancing rule at 0.01, not by the optimizer"
    assert str(found).splitlines()[0] == "completep-moe, adamw: w32 d2 E4A1 h32 -> w64 d3 E8A2 h128"


def test_matrices_that_share_a_tensor_share_their_numbers() -> None:
    base, model = make("gpt2"), make("gpt2", n_embd=64, n_head=8)
    made, shape = by_hand(hpxfer.shape_of(base), "completep"), hpxfer.shape_of(model)
    made.attach(model, shape)
    groups = made.param_groups(model, hpxfer.roles(model), shape)
    (group,) = (group for group in groups if "transformer.h.0.attn.c_attn.weight" in group["names"])
    assert group["lr"] == made.multipliers(shape)["attn_k"].lr
    assert {"attn_q", "attn_k", "attn_v"} <= set(group["roles"])
    made.init_(model, hpxfer.roles(model), shape, generator=torch.Generator().manual_seed(1))
    assert model.transformer.h[1].attn.c_attn.weight.std().item() == pytest.approx(64**-0.5, rel=0.03)


@pytest.mark.parametrize(
    ("kind", "hp", "said"),
    [
        ("gpt2", "lr_mult", "c_attn.weight: the matrices in one tensor must have one lr, got attn_q"),
        ("gpt2", "init_mult", "c_attn.weight: the matrices in one tensor must have one init_std"),
        ("mixtral", "lr_mult", "gate_up_proj: the matrices in one tensor must have one lr"),
    ],
)
def test_matrices_that_would_differ_may_not_share_a_tensor(kind: str, hp: str, said: str) -> None:
    model = make(kind)
    shape, table = hpxfer.shape_of(model), "completep" if kind == "gpt2" else "completep-moe"
    both = {"gpt2": ("attn_q", "attn_k", "attn_v"), "mixtral": ("expert_gate", "expert_in")}[kind]
    refused(said, by_hand(shape, table, **{f"{both[0]}.{hp}": 2.0}).param_groups, model, hpxfer.roles(model), shape)
    alike = {f"{role}.{hp}": 2.0 for role in both}
    by_hand(shape, table, **alike).param_groups(model, hpxfer.roles(model), shape)


def test_roles_that_a_tensor_cannot_have_are_refused() -> None:
    call, model = recipe().param_groups, nn.Linear(64, 64)
    refused(r"'a': attn_q\+norm: only matrices can share a tensor, got norm", call, model, {"a": "attn_q+norm"}, TARGET)
    two = [("weight", "attn_q"), ("weight", "attn_k"), ("bias", "hidden_bias")]
    refused("'weight': a pattern must have one role, got attn_q, attn_k", call, model, two, TARGET)


def test_tensors_without_memory_are_refused() -> None:
    with torch.device("meta"):
        model = mixtral_of_width(32)
    shape = hpxfer.shape_of(model)
    made = by_hand(shape)
    made.param_groups(model, hpxfer.roles(model), shape)
    assert made.explain(model) == made.explain(model, hpxfer.roles(model), shape)  # of a known model
    with pytest.raises(HpxferError, match=r"must have memory, got meta ones: model\.embed_tokens\.weight, .*to_empty"):
        made.init_(model, hpxfer.roles(model), shape)
    made.init_(model.to_empty(device="cpu"), hpxfer.roles(model), shape)
    assert model.lm_head.weight.std() > 0


def test_conventions_that_do_not_go_with_the_models_readout_are_refused() -> None:
    own = "is for tied embeddings, and this model has a readout of its"
    for tied, table, given, said in (
        (True, "mup-moe", {}, "this model's readout is tied"),
        (False, "completep-moe", {"embeddings": "tied"}, own),
    ):
        model = mixtral_of_width(32, tie_word_embeddings=tied)
        shape = hpxfer.shape_of(model)
        made = Recipe.from_hps(table, shape, {"lr": 1e-3}, conventions=given, gate="normalized_softmax")
        refused(said, made.param_groups, model, hpxfer.roles(model), shape)


def tying() -> Recipe:
    return by_hand(hpxfer.shape_of(mixtral_of_width(32)), "mssp-iii")


@pytest.mark.parametrize("layout", [lambda model: model, with_layout_of_4], ids=["stacked", "a module an expert"])
def test_tied_experts_start_from_one_draw_a_layer(layout: Any) -> None:
    model = layout(mixtral_of_width(32))
    shape, made = hpxfer.shape_of(model), tying()
    made.init_(model, hpxfer.roles(model), shape, generator=torch.Generator().manual_seed(1))
    layers = []
    for layer in model.model.layers:
        moe = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
        if isinstance(moe.experts, nn.ModuleList):
            sets = [[expert[name].weight for expert in moe.experts] for name in ("w1", "w2", "w3")]
        else:
            sets = [list(moe.experts.gate_up_proj), list(moe.experts.down_proj)]
        for experts in sets:
            assert len(experts) == 4
            assert all(torch.equal(experts[0], other) for other in experts)
            assert experts[0].std().item() == pytest.approx(32**-0.5, rel=0.1)
        layers.append(sets[0][0])
        assert not torch.equal(moe.gate.weight[0], moe.gate.weight[1])
    assert not torch.equal(layers[0], layers[1])
    by_hand(shape, "completep-moe").init_(model, hpxfer.roles(model), shape)
    assert not torch.equal(sets[0][0], sets[0][1])


def test_experts_that_cannot_be_told_apart_cannot_be_tied() -> None:
    model = with_layout_of_4(mixtral_of_width(32))
    shape, roles = hpxfer.shape_of(model), hpxfer.roles(model)
    experts = model.model.layers[1].block_sparse_moe.experts
    experts[2]["w1"].weight = nn.Parameter(torch.zeros(4 * 32, 32))
    with pytest.raises(HpxferError, match=r"experts\.2\.w1\.weight: experts that start from one draw must be a tensor"):
        tying().init_(model, roles, shape)


def own(**options: Any) -> OwnGPT:
    return multiplies(OwnGPT(Shape(**BASE), 16, 8, recipe().forward_multipliers(BASE), **options), recipe(), BASE)


def said(call: Any) -> list[str]:
    """Return the texts of the warnings of another model."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught if one.category is OtherModelWarning]


def swept(**model: Any) -> Recipe:
    """Return a recipe of a sweep whose base has the sizes of a Llama."""
    base = {"width": 32, "depth": 2, "num_experts": 0, "num_active": 0, "expert_width": 0, "head_dim": 8}
    base |= {"kv_heads": 2, "dense_width": 48, "batch_tokens": 512, "steps": 200}
    facts = {f"model__{name}": value for name, value in model.items()}
    return recipe(parameterization={"name": "completep", "conventions": {}}, base_shape=base, fitted__axes={}, **facts)


def test_a_llama_is_another_model_than_the_gpt_of_the_sweep_and_what_no_model_shows_is_said() -> None:
    shape, made = hpxfer.shape_of(make("llama")), swept()
    expected = [
        "norm: LayerNorm at the base, RMSNorm in the target",
        "positions: learned positions at the base, rotary positions (RoPE) in the target",
        "FFN: GELU without a gate at the base, SwiGLU in the target",
        "biases of the matrices: none at the base, some in the target",
    ]
    for call in (made.param_groups, made.explain):
        model = make("llama")
        (text,) = said(partial(call, model, hpxfer.roles(model), shape))
        first, *lines, last = text.splitlines()
        assert first.startswith("the target is another model than the one that this recipe was tuned on")
        assert [line.strip() for line in lines] == expected
        assert last.strip().startswith(
            "not seen in the target, so compare it yourself: optimizer (adamw), context (64 t"
        )
    model = make("llama")
    (text,) = said(lambda: swept().param_groups(model, hpxfer.roles(model), hpxfer.shape_of(model)))
    for part in (
        *("schedule (constant after 20 steps of warm-up)", "batch (512 tokens)", "tokens (102400 in 200 steps)"),
        *("gradient clipping (none)", "precision (float32)", "tokenizer (ascii, 128 ids)"),
    ):
        assert part in text
    assert said(lambda: swept().explain(model)) == [], "one warning a model"
    shape = {**hpxfer.shape_of(model).dims(), "batch_tokens": 512, "steps": 200}
    (text,) = said(lambda: swept().param_groups(model, hpxfer.roles(model), shape))
    assert "batch (" not in text
    assert "tokens (102400" not in text


def test_a_recipe_states_what_it_was_tuned_on_and_the_model_of_the_sweep_differs_in_nothing() -> None:
    line = next(line for line in recipe().describe(BASE).splitlines() if line.startswith("tuned on: "))
    for part in (
        *("norm LayerNorm", "positions learned positions", "FFN GELU without a gate", "gate sigmoid"),
        *("attention scale 1/d_head", "schedule constant after 20 steps", "batch 512 tokens", "optimizer adamw"),
    ):
        assert part in line
    model = own()
    assert said(lambda: recipe().param_groups(model, ROLES, BASE)) == []
    assert said(lambda: recipe().explain(model, ROLES, BASE)) == []


def test_each_option_of_ones_own_model_is_seen() -> None:
    model, roles = own(biases=True, tied=True, swiglu=True), {**ROLES_WITH_BIASES, "*.gate.weight": "expert_gate"}
    (text,) = said(lambda: recipe().param_groups(model, roles, BASE))
    assert [line.strip() for line in text.splitlines()[1:-1]] == [
        "FFN: GELU without a gate at the base, SwiGLU in the target",
        "readout: a matrix of its own at the base, tied to the embedding in the target",
        "biases of the matrices: none at the base, some in the target",
    ]


def test_gates_and_norms_are_seen_and_what_nobody_said_is_not_compared() -> None:
    model = make("qwen3_moe", norm_topk_prob=True, mlp_only_layers=[])
    shape = hpxfer.shape_of(model)
    facts = {"gate": "normalized_sigmoid", "attention_scale": ATTENTION, "qk_norm": False, "norm": "rmsnorm"}
    made = Recipe.from_hps("sp", shape, {"lr": 1e-3}, **facts)
    (text,) = said(lambda: made.param_groups(model, hpxfer.roles(model), shape))
    assert [line.strip() for line in text.splitlines()[1:-1]] == [
        "norms on queries and keys: none at the base, some in the target",
        "gate: normalized_sigmoid at the base, normalized_softmax in the target",
    ]
    model = make("mixtral")
    shape = hpxfer.shape_of(model)
    facts = {"norm": "rmsnorm", "positions": "rope", "ffn": "swiglu", "biases": False, "tied_embeddings": False}
    for known in (facts, {}):
        made = Recipe.from_hps("sp", shape, {"lr": 1e-3}, gate="normalized_softmax", attention_scale=ATTENTION, **known)
        assert said(lambda made=made: made.param_groups(model, hpxfer.roles(model), shape)) == []


def test_an_explanation_holds_the_differences_and_ends_with_what_cannot_be_seen() -> None:
    model = make("llama")
    with pytest.warns(OtherModelWarning):
        found = swept().explain(model)
    assert found.tuned_on.different[0] == "norm: LayerNorm at the base, RMSNorm in the target"
    assert "RMSNorm" not in str(found), "the warning says it"
    with pytest.warns() as caught:  # beside the other warning
        swept(attention_scale="1/d_head").param_groups(
            model := make("llama"), hpxfer.roles(model), hpxfer.shape_of(model)
        )
    assert [one.category for one in caught] == [UnattachedWarning, OtherModelWarning]
    last = str(recipe().explain(own(), ROLES, BASE)).splitlines()[-1]
    assert last.startswith("  not seen in the target, so compare it yourself: gate (sigmoid), optimizer (adamw)")


class Plain(nn.Module):
    """A model whose norms have no gains: two modules, or functions that no module shows."""

    def __init__(self, norm: type[nn.Module] | None, qk_norm: nn.Module | None = None) -> None:
        super().__init__()
        if norm is not None:
            self.norm1, self.norm2 = norm(32, elementwise_affine=False), norm(32, elementwise_affine=False)
        if qk_norm is not None:
            self.q_norm = qk_norm
        self.lm_head = nn.Linear(32, 48, bias=False)


class L2Norm(nn.Module):
    """As the norm on queries and keys of a Llama 4."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def differences_of(model: nn.Module, **facts: Any) -> tuple[str, ...]:
    base = {"width": 32, "depth": 2, "head_dim": 8, "dense_width": 64}
    made = Recipe.from_hps("completep", base, {"lr": 1e-3}, **facts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OtherModelWarning)
        return made.explain(model, {"lm_head.weight": "readout"}, base).tuned_on.different


def test_norms_without_gains_show_their_kind_and_are_not_denied_where_nothing_shows() -> None:
    kinds = (nn.LayerNorm, "layernorm", "rmsnorm"), (nn.RMSNorm, "rmsnorm", "layernorm")
    for norm, kind, other in kinds:
        assert differences_of(Plain(norm), norm=kind) == ()
        (said,) = differences_of(Plain(norm), norm=other)
        assert said.startswith("norm: ")
    assert differences_of(Plain(None), qk_norm=True) == differences_of(Plain(None), qk_norm=False) == ()
    assert differences_of(Plain(None, L2Norm()), qk_norm=True, norm="rmsnorm") == ()
    (said,) = differences_of(Plain(nn.RMSNorm, L2Norm()), qk_norm=False)
    assert said == "norms on queries and keys: none at the base, some in the target"
