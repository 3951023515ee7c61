"""What modern architectures have that a shape does not say: gains of 1 + w, scaled embeddings, fan-ins of their own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hf_models import ATTENTION, by_hand, make
from torch import nn

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe
from hpxfer.recipe.probe import Gain, embedding_scale, gain_of

DENSE = {"width": 32, "depth": 2, "head_dim": 8, "dense_width": 48}
MOE = {"width": 32, "depth": 2, "head_dim": 8, "num_experts": 4, "num_active": 2, "expert_width": 16}


def dense(base: Any = None, **facts: Any) -> Recipe:
    return Recipe.from_hps("completep", base or DENSE, {"lr": 2.0**-8}, attention_scale=ATTENTION, **facts)


def numbers(made: Recipe, model: nn.Module, shape: Any, roles: Any = None) -> dict[str, dict[str, Any]]:
    """Return name -> what the model gets. Each parameter stands in exactly one group."""
    roles = roles or hpxfer.roles(model)
    with made.attach(model, shape, (), by_hand=made.forward_multipliers(shape)):
        groups = made.param_groups(model, roles, shape)
    assert sorted(id(tensor) for group in groups for tensor in group["params"]) == sorted(map(id, model.parameters()))
    return {row["name"]: row for row in made.explain(model, roles, shape).to_dict()}


# --- a trained router bias


def test_every_parameter_of_a_gpt_oss_is_trained_its_router_bias_too() -> None:
    model = make("gpt_oss")
    shape = hpxfer.shape_of(model)
    found = numbers(by_hand(shape), model, shape)
    assert len(found) == len(list(model.parameters())) == 37
    bias = found["model.layers.1.mlp.router.bias"]
    assert (bias["role"], bias["init"], bias["weight_decay"]) == ("hidden_bias", "zeros", 0.0)
    assert bias["lr"] == by_hand(shape).multipliers(shape)["hidden_bias"].lr
    with pytest.raises(HpxferError, match=r"layers\.\*\.mlp\.router\.bias \(router_bias\): a balancing rule moves"):
        numbers(by_hand(shape), model, shape, hpxfer.roles(model, extra={"*.mlp.router.bias": "router_bias"}))


def test_a_balancing_buffer_is_moved_by_its_rule() -> None:
    model = make("deepseek_v3", q_lora_rank=None)
    model.model.layers[1].mlp.gate.e_score_correction_bias.fill_(1.0)
    base = {**MOE, "num_shared": 1, "shared_width": 16, "dense_width": 48}
    made = Recipe.from_hps("sp", base, {"lr": 1e-3}, gate="normalized_sigmoid", attention_scale=ATTENTION)
    roles = hpxfer.roles(model, extra={"*.kv_b_proj.weight": "attn_k+attn_v@8"})
    made.attach(model, base, (), by_hand=made.forward_multipliers(base))
    made.init_(model, roles, base)
    assert not model.model.layers[1].mlp.gate.e_score_correction_bias.any()


# --- gains


@pytest.mark.parametrize(("kind", "offset"), [("gemma", 1.0), ("gemma3", 1.0), ("llama", 0.0), ("gpt2", 0.0)])
def test_a_norm_multiplies_by_one_at_the_start(kind: str, offset: float) -> None:
    model = make(kind, tie_word_embeddings=False)
    base = {**DENSE, "dense_width": 128} if kind == "gpt2" else DENSE
    made, roles = dense(base, embedding_scale=32**0.5 if offset else 1.0), hpxfer.roles(model)
    made.init_(model, roles, base)
    gains = [row for row in made.explain(model, roles, base).to_dict() if row["role"] in ("norm", "final_norm")]
    assert {row["init"] for row in gains} == {"zeros" if offset else "ones"}
    modules = dict(model.named_modules())
    for row in gains:
        weight, module = model.get_parameter(row["name"]), modules[row["name"].removesuffix(".weight")]
        assert torch.equal(weight, torch.full_like(weight, 1.0 - offset))
        size = module(torch.randn(64, len(weight))).square().mean().sqrt().item()
        assert size == pytest.approx(1.0, abs=0.02)


def test_each_kind_of_norm_of_a_qwen3_next_is_told_apart() -> None:
    """The norm inside linear attention has a second input, its gate, and a gain of w. All others have 1 + w."""
    model = make("qwen3_next")
    modules = dict(model.named_modules())
    gains = {name: gain_of(module, "weight") for name, module in modules.items() if name.endswith("norm")}
    inner = gains.pop("model.layers.0.linear_attn.norm")
    assert inner == Gain(offset=0.0, centered=False)
    assert set(gains.values()) == {Gain(offset=1.0, centered=False)}


def test_probing_leaves_the_model_and_calls_no_hook() -> None:
    norm, called = nn.LayerNorm(8), []
    norm.register_forward_hook(lambda *_: called.append(1))
    before = copy.deepcopy(norm.state_dict())
    assert gain_of(norm, "weight") == Gain(offset=0.0, centered=True)
    assert gain_of(nn.LayerNorm(8, bias=False), "weight") == Gain(offset=0.0, centered=True)
    assert gain_of(nn.RMSNorm(8), "weight") == Gain(offset=0.0, centered=False)
    assert not called
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items())


class Hidden(nn.Module):
    """A block with a gain of its own, which cannot be called without the block."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((32,), start))
        self.lm_head = nn.Linear(32, 48, bias=False)


def test_a_gain_that_starts_at_zero_and_shows_nothing_is_refused() -> None:
    roles = {"gain": "norm", "lm_head.weight": "readout"}
    with pytest.raises(
        HpxferError, match=r"init_: a gain must show whether it is w or 1 \+ w, got zeros .*: gain; put"
    ):
        dense().init_(Hidden(0.0), roles, DENSE)
    model = dense().init_(Hidden(0.5), roles, DENSE)
    assert torch.equal(model.gain, torch.ones(32))


# --- scaled embeddings


def test_the_scale_of_an_embedding_is_seen_wherever_it_stands() -> None:
    def scale(kind: str, **changes: Any) -> float:
        model = make(kind, **changes)
        return embedding_scale(model.model.embed_tokens, "weight", model.model, 32)

    assert scale("gemma") == scale("gemma3") == pytest.approx(32**0.5)
    assert scale("granite", embedding_multiplier=12.0) == 12.0
    assert scale("llama") == scale("granite", embedding_multiplier=1.0) == 1.0


@pytest.mark.parametrize(
    ("tied", "facts", "said"),
    [
        (False, {}, r"multiplies the rows of its embedding by 5\.65685, .* the recipe does not say .*embedding_scale="),
        (True, {}, r"the recipe does not say by what its base does"),
        (True, {"embedding_scale": 4.0}, r"by 5\.65685, the recipe's base by 4, and the readout is the same tensor"),
    ],
)
def test_a_scaled_embedding_is_refused_where_no_numbers_undo_it(tied: bool, facts: Any, said: str) -> None:
    model = make("gemma", tie_word_embeddings=tied)
    for call in (dense(**facts).param_groups, dense(**facts).init_):
        with pytest.raises(HpxferError, match=rf"roles: model\.embed_tokens\.weight: .*{said}"):
            call(model, hpxfer.roles(model), DENSE)
    model.get_input_embeddings().embed_scale.fill_(1.0)  # as the message says
    dense().param_groups(model, hpxfer.roles(model), DENSE)


def test_the_same_scale_at_base_and_target_changes_nothing() -> None:
    model = make("gemma")
    row = numbers(dense(embedding_scale=32**0.5), model, DENSE)["model.embed_tokens.weight"]
    assert row["lr"] == 2.0**-8
    assert row["init"] == 0.02


def test_numbers_undo_the_scale_of_an_embedding_exactly() -> None:
    """Under AdamW a Gemma with its scale trains as the same Gemma without it, from the same effective embedding."""
    losses = []
    made = Recipe.from_hps(
        "completep",
        DENSE,
        {"lr": 2.0**-6, "weight_decay": 0.1, "eps": 1e-4},
        attention_scale=ATTENTION,
        embedding_scale=1,
    )
    for scaled in (True, False):
        model: Any = make("gemma", tie_word_embeddings=False)
        embedding = model.get_input_embeddings()
        if not scaled:
            embedding.embed_scale.fill_(1.0)
        roles = hpxfer.roles(model)
        made.init_(model, roles, DENSE, generator=torch.Generator().manual_seed(3))
        assert embedding(torch.arange(48)).std().item() == pytest.approx(0.02, rel=0.1)
        optimizer = torch.optim.AdamW(made.param_groups(model, roles, DENSE))
        ids = torch.arange(24).view(2, 12) * 7 % 48
        losses.append([])
        for _ in range(6):
            loss = nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0] - 0.1


# --- fan-ins


def test_the_output_of_attention_starts_by_its_own_fan_in() -> None:
    """Qwen3-MoE has heads x head_dim of twice the width: by the width its output started sqrt(2) too large."""
    model = make("qwen3_moe", head_dim=16, num_hidden_layers=1, mlp_only_layers=[])
    shape = hpxfer.shape_of(model)
    made = by_hand(shape, "completep-moe", "softmax")
    row = numbers(made, model, shape)["model.layers.0.self_attn.o_proj.weight"]
    assert row["init"] == pytest.approx(64**-0.5)
    assert row["lr"] == 2.0**-8, "the base of a recipe by hand is taken to have the same heads"
    assert row["note"] is None, "the shape of the base has its number of heads"
    queries = numbers(made, model, shape)["model.layers.0.self_attn.q_proj.weight"]
    assert (queries["init"], queries["note"]) == (pytest.approx(32**-0.5), None)
    made.init_(model, hpxfer.roles(model), shape, generator=torch.Generator().manual_seed(1))
    assert model.model.layers[0].self_attn.o_proj.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)


def test_a_base_with_other_heads_scales_init_and_lr_as_the_table_says() -> None:
    model = make("llama", head_dim=16, attention_bias=False, mlp_bias=False)
    made, sp = dense({**DENSE, "head_dim": 16}, attention_ratio=1.0), "model.layers.0.self_attn.o_proj.weight"
    row = numbers(made, model, {**DENSE, "head_dim": 16})[sp]
    assert (row["init"], row["lr"]) == (pytest.approx(64**-0.5), pytest.approx(2.0**-9))  # LR ~ 1/fan-in
    constant = Recipe.from_hps("sp", {**DENSE, "head_dim": 16}, {"lr": 2.0**-8}, attention_ratio=1.0)
    assert numbers(constant, model, {**DENSE, "head_dim": 16})[sp]["lr"] == 2.0**-8


def test_grouped_keys_and_values_and_other_layouts_read_the_width() -> None:
    model = make("gpt2")  # stores [in, out]
    made = by_hand(hpxfer.shape_of(model), "completep")
    found = numbers(made, model, hpxfer.shape_of(model))
    assert all(row["note"] is None for row in found.values() if row["role"] != "embedding")
    llama = make("llama")
    assert numbers(dense(), llama, DENSE)["model.layers.0.self_attn.k_proj.weight"]["init"] == pytest.approx(32**-0.5)


LOW_RANK = {"*.q_b_proj.weight": "attn_q@12", "*.kv_b_proj.weight": "attn_k+attn_v@8"}


def mla() -> tuple[Recipe, Any, Any]:
    model = make("deepseek_v3", kv_lora_rank=16)
    base = {**MOE, "num_shared": 1, "shared_width": 16, "dense_width": 48}
    made = Recipe.from_hps("mup-moe", base, {"lr": 2.0**-8}, gate="normalized_sigmoid", attention_scale=ATTENTION)
    return made, model, base


def test_low_rank_attention_must_say_the_rank_of_the_base() -> None:
    made, model, base = mla()
    with pytest.raises(HpxferError) as error:
        made.param_groups(model, hpxfer.roles(model), base)
    text = str(error.value)
    assert (
        "q_b_proj.weight (attn_q) must have the target's width 32 as one of its dimensions, got size (48, 12)" in text
    )
    assert "of a low rank: attn_q@12, its fan-in at the base" in text
    assert "q_a_proj" not in text


def test_a_role_carries_the_fan_in_of_the_base() -> None:
    """The rank of keys doubles from base to target, and that of queries stays."""
    made, model, base = mla()
    found = numbers(made, model, base, hpxfer.roles(model, extra=LOW_RANK))
    queries, keys = (found[f"model.layers.0.self_attn.{name}_b_proj.weight"] for name in ("q", "kv"))
    assert (queries["init"], queries["lr"]) == (pytest.approx(12**-0.5), pytest.approx(2.0**-8))
    assert (keys["init"], keys["lr"]) == (pytest.approx(16**-0.5), pytest.approx(2.0**-9))


def test_a_low_rank_of_the_size_of_a_head_is_no_width() -> None:
    """Here heads x (nope + v) is 32, the width: the wrong dimension of the tensor has its size."""
    model = make("deepseek_v3", qk_nope_head_dim=4, v_head_dim=4)
    _, _, base = mla()
    made = Recipe.from_hps("sp", base, {"lr": 1e-3}, gate="normalized_sigmoid")
    roles = hpxfer.roles(model, extra={"*.q_b_proj.weight": "attn_q@12"})
    with pytest.raises(
        HpxferError, match=r"kv_b_proj\.weight: attn_k must have the width 32 as its fan-in, got 8; a m"
    ):
        made.param_groups(model, roles, base)


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("attn_q@", "after @ must stand the fan-in at the base, e.g. attn_q@128, got ''"),
        ("attn_q@1.5", "after @ must stand the fan-in at the base"),
        ("norm@12", "only a matrix can carry its fan-in, got norm"),
        ("dense_out@12", "dense_out@12: only the weight of a linear layer that is no output of an FFN can carry"),
    ],
)
def test_a_fan_in_that_no_matrix_can_have_is_refused(role: str, said: str) -> None:
    made, model, base = mla()
    with pytest.raises(HpxferError, match=said):
        made.param_groups(model, hpxfer.roles(model, extra={**LOW_RANK, "*.mlp.down_proj.weight": role}), base)


def test_the_gate_of_a_shared_expert_is_a_router_of_one_number() -> None:
    model = make("qwen2_moe")
    base = {**MOE, "num_shared": 1, "shared_width": 24}
    made = Recipe.from_hps("mup-moe", base, {"lr": 2.0**-8}, gate="softmax", attention_scale=ATTENTION)
    row = numbers(made, model, base)["model.layers.1.mlp.shared_expert_gate.weight"]
    assert (row["role"], row["size"]) == ("router", [1, 32])


@pytest.mark.parametrize(
    ("kind", "gate"),
    [("qwen2_moe", "softmax"), ("deepseek_v3", "normalized_sigmoid"), ("gpt_oss", "normalized_softmax")],
)
def test_the_advice_for_another_gate_is_the_one_that_works(kind: str, gate: str) -> None:
    model = make(kind)
    other = "softmax" if gate != "softmax" else "sigmoid"
    base = hpxfer.shape_of(model) if kind == "gpt_oss" else MOE
    made = Recipe.from_hps("sp", base, {"lr": 1e-3}, gate=other)
    with pytest.raises(HpxferError, match=rf"got {gate}, which is what this {kind} computes .*model\.gate: {gate}\)"):
        made.init_(model, hpxfer.roles(model), base)


def test_outputs_that_share_a_tensor_have_no_fan_in_of_their_own() -> None:
    """A parallel block adds attention and FFN by one matrix, which reads both."""
    alike = {**DENSE, "dense_width": 32}
    model = nn.ModuleDict({"both": nn.Linear(64, 32, bias=False)})
    row = numbers(dense(alike, attention_ratio=1.0), model, alike, {"both.weight": "attn_out+dense_out"})["both.weight"]
    assert (row["init"], row["lr"], row["note"]) == (pytest.approx(32**-0.5), 2.0**-8, None)
