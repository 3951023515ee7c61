"""What modern architectures have that a shape does not say: gains of 1 + w, scaled embeddings, own fan-ins."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hf_models import ATTENTION, by_hand, make
from refusals import refused
from torch import nn

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe
from hpxfer.recipe.assign import fan_in_of
from hpxfer.recipe.probe import Gain, embedding_scale, gain_of
from hpxfer.scaling.shape import Shape

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


def test_router_biases_are_trained_or_moved_by_their_rule() -> None:
    model = make("gpt_oss")
    shape = hpxfer.shape_of(model)
    found = numbers(by_hand(shape), model, shape)
    assert len(found) == len(list(model.parameters())) == 37
    bias = found["model.layers.1.mlp.router.bias"]
    assert (bias["role"], bias["init"], bias["weight_decay"]) == ("hidden_bias", "zeros", 0.0)
    assert bias["lr"] == by_hand(shape).multipliers(shape)["hidden_bias"].lr
    with pytest.raises(HpxferError, match=r"layers\.\*\.mlp\.router\.bias \(router_bias\): a balancing rule moves"):
        numbers(by_hand(shape), model, shape, hpxfer.roles(model, extra={"*.mlp.router.bias": "router_bias"}))
    model = make("deepseek_v3", q_lora_rank=None)
    model.model.layers[1].mlp.gate.e_score_correction_bias.fill_(1.0)
    base = {**MOE, "num_shared": 1, "shared_width": 16, "dense_width": 48}
    made = Recipe.from_hps("sp", base, {"lr": 1e-3}, gate="normalized_sigmoid", attention_scale=ATTENTION)
    roles = hpxfer.roles(model, extra={"*.kv_b_proj.weight": "attn_k+attn_v@8"})
    made.attach(model, base, (), by_hand=made.forward_multipliers(base))
    made.init_(model, roles, base)
    assert not model.model.layers[1].mlp.gate.e_score_correction_bias.any()
    shared = make("qwen2_moe")  # the gate of its shared expert is a router of one number
    base = {**MOE, "num_shared": 1, "shared_width": 24}
    made = Recipe.from_hps("mup-moe", base, {"lr": 2.0**-8}, gate="softmax", attention_scale=ATTENTION)
    row = numbers(made, shared, base)["model.layers.1.mlp.shared_expert_gate.weight"]
    assert (row["role"], row["size"]) == ("router", [1, 32])


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


def test_each_kind_of_norm_of_a_qwen3_next_is_told_apart_and_what_shows_nothing_is_refused() -> None:
    """The norm inside linear attention has a second input, its gate, and a gain of w. All others have 1 + w."""
    model = make("qwen3_next")
    modules = dict(model.named_modules())
    gains = {name: gain_of(module, "weight") for name, module in modules.items() if name.endswith("norm")}
    inner = gains.pop("model.layers.0.linear_attn.norm")
    assert inner == Gain(offset=0.0, centered=False)
    assert set(gains.values()) == {Gain(offset=1.0, centered=False)}
    assert gain_of(nn.LayerNorm(8), "weight") == Gain(offset=0.0, centered=True)
    assert gain_of(nn.LayerNorm(8, bias=False), "weight") == Gain(offset=0.0, centered=True)
    assert gain_of(nn.RMSNorm(8), "weight") == Gain(offset=0.0, centered=False)

    class Exponential(nn.RMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.rms_norm(x, (WIDTH,)) * self.weight.exp()

    assert gain_of(Exponential(WIDTH), "weight") is None, "no straight line of its parameter"
    roles = {"gain": "norm", "lm_head.weight": "readout"}
    said = r"init_: a gain must show whether it is w or 1 \+ w, got zeros .*: gain; put"
    refused(said, dense().init_, Hidden(0.0), roles, DENSE)
    model = dense().init_(Hidden(0.5), roles, DENSE)
    assert torch.equal(model.gain, torch.ones(32))


def test_probing_calls_no_hook_and_leaves_parameters_buffers_and_modes() -> None:
    class Counting(Scaled):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(ids)

    around, norm = Counting(SCALE, dropout=0.5), nn.LayerNorm(8)
    around.register_buffer("calls", torch.zeros(1))
    called: list[object] = []
    for module in (norm, *around.modules()):
        module.register_forward_hook(lambda *args: called.append(args))
        module.register_forward_pre_hook(lambda *args: called.append(args))
    before, state = copy.deepcopy((around.state_dict(), norm.state_dict())), torch.get_rng_state()
    gain_of(norm, "weight")
    assert embedding_scale(around.inner, "weight", around, WIDTH) == pytest.approx(SCALE)
    assert not called
    assert around.training
    assert around.dropout.training
    assert torch.equal(torch.get_rng_state(), state)
    for module, of in zip((around, norm), before, strict=True):
        assert all(torch.equal(tensor, of[name]) for name, tensor in module.state_dict().items())


class Hidden(nn.Module):
    """A block with a gain of its own, which cannot be called without the block."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((32,), start))
        self.lm_head = nn.Linear(32, 48, bias=False)


def test_the_scale_of_an_embedding_is_seen_wherever_it_stands() -> None:
    def scale(kind: str, **changes: Any) -> float:
        model = make(kind, **changes)
        return embedding_scale(model.model.embed_tokens, "weight", model.model, 32)

    assert scale("gemma") == scale("gemma3") == pytest.approx(32**0.5)
    with torch.device("meta"):  # without memory the factor is a number of the module
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
        refused(rf"roles: model\.embed_tokens\.weight: .*{said}", call, model, hpxfer.roles(model), DENSE)
    model.get_input_embeddings().embed_scale.fill_(1.0)  # as the message says
    dense().param_groups(model, hpxfer.roles(model), DENSE)
    same = numbers(dense(embedding_scale=32**0.5), make("gemma"), DENSE)["model.embed_tokens.weight"]
    assert (same["lr"], same["init"]) == (2.0**-8, 0.02)  # the same scale at base and target changes nothing


def test_numbers_undo_the_scale_of_an_embedding_exactly() -> None:
    """Under AdamW a Gemma with its scale trains as the same Gemma without it, from the same effective embedding."""
    losses = []
    hps = {"lr": 2.0**-6, "weight_decay": 0.1, "eps": 1e-4}
    made = Recipe.from_hps("completep", DENSE, hps, attention_scale=ATTENTION, embedding_scale=1)
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


def test_the_output_of_attention_starts_by_its_own_fan_in_unless_it_has_none() -> None:
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
    heads = nn.ParameterDict({"w_o": nn.Parameter(torch.zeros(8, 8, 32))})  # eight heads of 8 in an einsum
    (row,) = Recipe.from_hps("completep", TARGET, {"lr": 1e-3}).explain(heads, {"w_o": "attn_out"}, TARGET).rows
    assert row.init == pytest.approx(64**-0.5)
    made.init_(model, hpxfer.roles(model), shape, generator=torch.Generator().manual_seed(1))
    assert model.model.layers[0].self_attn.o_proj.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    llama, gpt2 = make("llama"), make("gpt2")  # which stores [in, out]
    assert numbers(dense(), llama, DENSE)["model.layers.0.self_attn.k_proj.weight"]["init"] == pytest.approx(32**-0.5)
    found = numbers(by_hand(hpxfer.shape_of(gpt2), "completep"), gpt2, hpxfer.shape_of(gpt2))
    assert all(row["note"] is None for row in found.values() if row["role"] != "embedding")
    # A parallel block adds attention and FFN by one matrix, which reads both: no fan-in of its own.
    alike, model = {**DENSE, "dense_width": 32}, nn.ModuleDict({"both": nn.Linear(64, 32, bias=False)})
    row = numbers(dense(alike, attention_ratio=1.0), model, alike, {"both.weight": "attn_out+dense_out"})["both.weight"]
    assert (row["init"], row["lr"], row["note"]) == (pytest.approx(32**-0.5), 2.0**-8, None)
    model = make("llama", head_dim=16, attention_bias=False, mlp_bias=False)
    made, sp = dense({**DENSE, "head_dim": 16}, attention_ratio=1.0), "model.layers.0.self_attn.o_proj.weight"
    row = numbers(made, model, {**DENSE, "head_dim": 16})[sp]
    assert (row["init"], row["lr"]) == (pytest.approx(64**-0.5), pytest.approx(2.0**-9))  # LR ~ 1/fan-in
    constant = Recipe.from_hps("sp", {**DENSE, "head_dim": 16}, {"lr": 2.0**-8}, attention_ratio=1.0)
    assert numbers(constant, model, {**DENSE, "head_dim": 16})[sp]["lr"] == 2.0**-8


LOW_RANK = {"*.q_b_proj.weight": "attn_q@12", "*.kv_b_proj.weight": "attn_k+attn_v@8"}


def mla() -> tuple[Recipe, Any, Any]:
    model = make("deepseek_v3", kv_lora_rank=16)
    base = {**MOE, "num_shared": 1, "shared_width": 16, "dense_width": 48}
    made = Recipe.from_hps("mup-moe", base, {"lr": 2.0**-8}, gate="normalized_sigmoid", attention_scale=ATTENTION)
    return made, model, base


@pytest.mark.parametrize(
    ("down", "said"),
    [
        (
            None,
            r"q_b_proj\.weight \(attn_q\) must have the target's width 32 as one of its dimensions, got size \(48, 1",
        ),
        (None, "of a low rank: attn_q@12, its fan-in at the base"),
        ("attn_q@", "after @ must stand the fan-in at the base, e.g. attn_q@128"),
        ("attn_q@1.5", "after @ must stand the fan-in at the base"),
        ("norm@12", "only a matrix can carry its fan-in, got norm"),
        ("dense_out@12", "dense_out@12: only the weight of a linear layer that is no output of an FFN can carry"),
    ],
)
def test_low_rank_attention_must_say_the_rank_of_the_base_of_a_matrix(down: str | None, said: str) -> None:
    made, model, base = mla()
    extra = {**LOW_RANK, "*.mlp.down_proj.weight": down} if down else {}
    with pytest.raises(HpxferError, match=said) as error:
        made.param_groups(model, hpxfer.roles(model, extra=extra), base)
    assert "q_a_proj" not in str(error.value)


def test_a_role_carries_the_fan_in_of_the_base_and_a_low_rank_is_no_width() -> None:
    """The rank of keys doubles from base to target, and that of queries stays."""
    made, model, base = mla()
    found = numbers(made, model, base, hpxfer.roles(model, extra=LOW_RANK))
    queries, keys = (found[f"model.layers.0.self_attn.{name}_b_proj.weight"] for name in ("q", "kv"))
    assert (queries["init"], queries["lr"]) == (pytest.approx(12**-0.5), pytest.approx(2.0**-8))
    assert (keys["init"], keys["lr"]) == (pytest.approx(16**-0.5), pytest.approx(2.0**-9))
    # Here heads x (nope + v) is 32, the width: the wrong dimension of the tensor has its size.
    model, made = make("deepseek_v3", qk_nope_head_dim=4, v_head_dim=4), mla()[0]
    said = r"kv_b_proj\.weight: attn_k must have the width 32 as its fan-in, got 8; a m"
    refused(said, made.param_groups, model, hpxfer.roles(model, extra={"*.q_b_proj.weight": "attn_q@12"}), mla()[2])


@pytest.mark.parametrize(("kind", "gate"), [("qwen2_moe", "softmax"), ("deepseek_v3", "normalized_sigmoid")])
def test_the_advice_for_another_gate_is_the_one_that_works(kind: str, gate: str) -> None:
    model = make(kind)
    made = Recipe.from_hps("sp", MOE, {"lr": 1e-3}, gate="sigmoid")
    with pytest.raises(HpxferError, match=rf"got {gate}, which is what this {kind} computes .*model\.gate: {gate}\)"):
        made.init_(model, hpxfer.roles(model), MOE)


WIDTH = 32
SCALE = math.sqrt(WIDTH)


class Scaled(nn.Module):
    """An embedding, and around it whatever scales its output."""

    def __init__(self, by: Any, *, buffer: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Embedding(48, WIDTH)
        self.dropout = nn.Dropout(dropout)
        if buffer:
            self.register_buffer("by", torch.tensor(by))
        else:
            self.by = by

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.dropout(self.inner(ids) * self.by)
        return out


class Holder(nn.Module):
    """A model that holds an embedding and a head. Its forward pass does not matter."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.inner = nn.Embedding(48, WIDTH)
        self.head = nn.Linear(WIDTH, 48, bias=False)
        for name, value in attributes.items():
            setattr(self, name, value)


def test_a_factor_of_an_embedding_is_seen_around_it_and_in_the_model_under_any_name() -> None:
    for options in ({}, {"buffer": True}, {"dropout": 0.5}):
        around = Scaled(SCALE, **options)
        assert embedding_scale(around.inner, "weight", around, WIDTH) == pytest.approx(SCALE)
    assert embedding_scale(around.inner, "weight", Scaled(1.0), WIDTH) == 1.0
    for around in (
        Holder(embed_scale=SCALE),
        Holder(embed_scale=torch.tensor(SCALE)),
        Holder(embedding_multiplier=torch.full((1,), SCALE)),
        Holder(config=SimpleNamespace(scale_emb=SCALE)),
    ):
        assert embedding_scale(around.inner, "weight", around, WIDTH) == pytest.approx(SCALE)
    module = Holder(embed_scale=SCALE, table=nn.Parameter(torch.zeros(48, WIDTH)))
    assert embedding_scale(module, "table", Holder(), WIDTH) == pytest.approx(SCALE)


def test_what_scales_nothing_is_not_taken_for_a_factor() -> None:
    class Positions(Scaled):
        """Adds numbers of its own, so that its output shows no factor."""

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(ids) + torch.arange(WIDTH)

    class OneMatrix(Scaled):
        """A whole model with one matrix, whose logits are sums over the width."""

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(ids) @ self.inner.weight.T

    others = Holder(embed_scale=None, scale_emb=True), Holder(embed_scale=torch.ones(3))
    for around in (Positions(1.0), OneMatrix(1.0), *others):
        assert embedding_scale(around.inner, "weight", around, WIDTH) == 1.0


def test_what_a_tensor_without_memory_may_hide_is_refused_and_not_taken_as_absent() -> None:
    class Embedding(nn.Embedding):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(48, WIDTH)
            self.register_buffer("by", torch.tensor(SCALE))
            self.__dict__.update(attributes)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = super().forward(ids) * self.by
            return out

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8))
            self.register_buffer("tiny", torch.tensor(1e-6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (x.pow(2).mean(-1, keepdim=True) + self.tiny).rsqrt() * (1 + self.weight)

    owner = Holder()
    assert embedding_scale(Embedding(), "weight", owner, WIDTH) == pytest.approx(SCALE)
    assert gain_of(Norm(), "weight") == Gain(offset=1.0, centered=False)
    with torch.device("meta"):
        within, around, stated = Embedding(), Scaled(SCALE, buffer=True), Holder(embed_scale=torch.tensor(SCALE))
        shown, plain, norm = Embedding(scalar_embed_scale=SCALE), Holder(), Norm()
    assert embedding_scale(shown, "weight", owner, WIDTH) == SCALE
    assert embedding_scale(plain.inner, "weight", plain, WIDTH) == 1.0
    rule = r"must show the factor on its rows, got its tensor (by|embed_scale) without"
    for module, of in ((within, owner), (around.inner, around), (stated.inner, stated)):
        refused(rule, embedding_scale, module, "weight", of, WIDTH)
    refused(r"Norm must show whether its gain is w or 1 \+ w, got its tensor tiny without", gain_of, norm, "weight")


TARGET = Shape(width=32, depth=2, head_dim=8, dense_width=64)


@pytest.mark.parametrize(
    ("size", "fan_in"),
    [
        *(((64, 32), 64), ((32, 64), 64)),  # x @ w
        *(((8, 8, 32), 64), ((32, 8, 8), 64), ((4, 8, 32), 32)),  # [heads, head_dim, width] of an einsum
        # [depth, heads x head_dim, width]: all layers in one tensor
        *(((2, 64, 32), 64), ((2, 32, 64), 64), ((2, 32, 32), 32), ((2, 8, 8, 32), 64)),
        ((2, 8, 32), 16),  # two heads, not two layers of one head
        ((3, 64, 32), None),  # a stack of something else
    ],
)
def test_the_output_of_attention_shows_its_fan_in_in_every_layout(size: tuple[int, ...], fan_in: int | None) -> None:
    assert fan_in_of("attn_out", size, nn.Module(), "w_o", TARGET) == fan_in
