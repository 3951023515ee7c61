"""What a recipe gives a model, tensor by tensor; matrices that share a tensor; experts that share a draw."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hf_models import by_hand, make, mixtral_of_width, with_layout_of_4
from own_model import ROLES, OwnGPT
from recipe_data import TARGET, recipe
from torch import nn

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe
from hpxfer.scaling.shape import Shape


def test_every_tensor_has_its_line() -> None:
    made, model = recipe(), OwnGPT(Shape(**TARGET), 16, 8, recipe().forward_multipliers(TARGET))
    model.norm.weight.requires_grad_(False)
    values = made.multipliers(TARGET)
    found = made.explain(model, ROLES, TARGET)
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


def test_a_known_model_needs_neither_roles_nor_shape() -> None:
    model = mixtral_of_width(64)
    made = by_hand(hpxfer.shape_of(mixtral_of_width(32)))
    assert made.explain(model) == made.explain(model, hpxfer.roles(model), hpxfer.shape_of(model))


def test_explaining_touches_nothing() -> None:
    model = make("gpt2")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    by_hand(hpxfer.shape_of(model), "completep").explain(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


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
    ("kind", "table", "hp", "said"),
    [
        (
            "gpt2",
            "completep",
            "attn_q.lr_mult",
            "c_attn.weight: the matrices in one tensor must have one lr, got attn_q",
        ),
        ("gpt2", "completep", "attn_v.init_mult", "c_attn.weight: the matrices in one tensor must have one init_std"),
        (
            "mixtral",
            "completep-moe",
            "expert_gate.lr_mult",
            "gate_up_proj: the matrices in one tensor must have one lr",
        ),
    ],
)
def test_matrices_that_would_differ_may_not_share_a_tensor(kind: str, table: str, hp: str, said: str) -> None:
    model = make(kind)
    shape = hpxfer.shape_of(model)
    with pytest.raises(HpxferError, match=said):
        by_hand(shape, table, **{hp: 2.0}).param_groups(model, hpxfer.roles(model), shape)
    both = {"gpt2": ("attn_q", "attn_k", "attn_v"), "mixtral": ("expert_in", "expert_gate")}[kind]
    alike = {f"{role}.{hp.partition('.')[2]}": 2.0 for role in both}
    by_hand(shape, table, **alike).param_groups(model, hpxfer.roles(model), shape)


def test_only_matrices_share_a_tensor() -> None:
    with pytest.raises(HpxferError, match=r"'a': attn_q\+norm: only matrices can share a tensor, got norm"):
        recipe().param_groups(nn.Linear(2, 2), {"a": "attn_q+norm"}, TARGET)


def test_a_pattern_with_two_roles_is_ambiguous() -> None:
    pairs = [("weight", "attn_q"), ("weight", "attn_k"), ("bias", "hidden_bias")]
    with pytest.raises(HpxferError, match="'weight': a pattern must have one role, got attn_q, attn_k"):
        recipe().param_groups(nn.Linear(64, 64), pairs, TARGET)


def test_tensors_without_memory_are_refused() -> None:
    with torch.device("meta"):
        model = mixtral_of_width(32)
    shape = hpxfer.shape_of(model)
    made = by_hand(shape)
    made.param_groups(model, hpxfer.roles(model), shape)
    with pytest.raises(HpxferError, match=r"must have memory, got meta ones: model\.embed_tokens\.weight, .*to_empty"):
        made.init_(model, hpxfer.roles(model), shape)
    made.init_(model.to_empty(device="cpu"), hpxfer.roles(model), shape)
    assert model.lm_head.weight.std() > 0


@pytest.mark.parametrize(
    ("table", "model_has", "said"),
    [
        ("mup-moe", {"tie_word_embeddings": True}, "this model's readout is tied"),
        ("tied", {}, "is for tied embeddings, and this model has a readout of its own"),
    ],
)
def test_conventions_that_do_not_go_with_the_models_readout_are_refused(table: str, model_has: Any, said: str) -> None:
    model = mixtral_of_width(32, **model_has)
    shape = hpxfer.shape_of(model)
    conventions = {"embeddings": "tied"} if table == "tied" else {}
    name = "completep-moe" if table == "tied" else table
    made = Recipe.from_hps(name, shape, {"lr": 1e-3}, conventions=conventions, gate="normalized_softmax")
    with pytest.raises(HpxferError, match=said):
        made.param_groups(model, hpxfer.roles(model), shape)


def tying() -> Recipe:
    return by_hand(
        {"width": 32, "depth": 2, "head_dim": 16, "num_experts": 4, "num_active": 2, "expert_width": 32}, "mssp-iii"
    )


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
    free = by_hand(shape, "completep-moe").init_(model, hpxfer.roles(model), shape)
    assert not torch.equal(
        *next(tensor for name, tensor in free.named_parameters() if "experts" in name and tensor.ndim > 1)[:2]
    )


def test_experts_that_cannot_be_told_apart_cannot_be_tied() -> None:
    model = with_layout_of_4(mixtral_of_width(32))
    shape, roles = hpxfer.shape_of(model), hpxfer.roles(model)
    experts = model.model.layers[1].block_sparse_moe.experts
    experts[2]["w1"].weight = nn.Parameter(torch.zeros(4 * 32, 32))
    with pytest.raises(HpxferError, match=r"experts\.2\.w1\.weight: experts that start from one draw must be a tensor"):
        tying().init_(model, roles, shape)
