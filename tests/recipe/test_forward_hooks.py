"""Attached multipliers: the model that was written with them, in training and evaluation, compiled and copied."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import pytest
import torch
from hf_models import by_hand, logits, make, mixtral_of_width
from own_model import ROLES, OwnGPT
from recipe_data import BASE, TARGET, recipe
from torch import nn

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import ByHandWarning, Recipe
from hpxfer.recipe.forward_hooks import attach as attach_numbers
from hpxfer.scaling.shape import Shape

KINDS = {
    "gpt2": "completep",
    "llama": "completep",
    "mixtral": "completep-moe",
    "qwen3_moe": "sp",
    "olmoe": "sp",
    "gpt_oss": "sp",
}
GATES = {"qwen3_moe": "softmax", "olmoe": "softmax"}
ONES = {"attn_logits": 1 / 16, "attn_out": 1.0, "expert_out": 1.0, "shared_out": 1.0, "dense_out": 1.0, "readout": 1.0}
# Of the own model, whose attention multiplies q.k itself. The branch's output is multiplied, not what is inside it.
SITES = (("blocks.*.attention", "attn_out"), ("blocks.*.moe", "expert_out"), ("head", "readout"))
IDS = torch.arange(16).view(2, 8) % 11


def twins() -> tuple[OwnGPT, OwnGPT]:
    """Return the own model with the target's multipliers written into it, and the same weights without any."""
    torch.manual_seed(3)
    written = OwnGPT(Shape(**TARGET), 11, 8, recipe().forward_multipliers(TARGET))
    plain = OwnGPT(Shape(**TARGET), 11, 8, ONES)
    for model in (written, plain):
        with recipe().attach(model, TARGET, by_hand=recipe().forward_multipliers(TARGET)):
            recipe().init_(model, ROLES, TARGET, generator=torch.Generator().manual_seed(2))
    return written, plain


def attach(model: nn.Module, sites: Any = SITES, **options: Any) -> Any:
    return recipe().attach(model, TARGET, sites, **{"by_hand": ("attn_logits",), **options})


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_attached_multipliers_are_those_written_into_the_model(training: bool) -> None:
    written, plain = (model.train(training) for model in twins())
    assert not torch.allclose(plain(IDS), written(IDS))
    with attach(plain):
        torch.testing.assert_close(plain(IDS), written(IDS))
    assert not torch.allclose(plain(IDS), written(IDS))


def test_gradients_go_through_them() -> None:
    written, plain = twins()
    with attach(plain):
        plain.loss(IDS, IDS).backward()
    written.loss(IDS, IDS).backward()
    for mine, other in zip(plain.parameters(), written.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_one_multiplier_left_out_is_noticed() -> None:
    written, plain = twins()
    for key in ("attn_out", "expert_out", "readout"):
        rest = [site for site in SITES if site[1] != key]
        with pytest.raises(HpxferError, match=rf"got none for {key} \(0\.\d+\); add it, or name it in by_hand"):
            attach(plain, rest)
        with attach(plain, rest, by_hand=("attn_logits", key)):
            assert not torch.allclose(plain(IDS), written(IDS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_known_model_at_the_base_is_what_it_was(kind: str) -> None:
    model = make(kind).eval()
    shape, before = hpxfer.shape_of(model), logits(model)
    made = by_hand(shape, KINDS[kind], GATES.get(kind, "normalized_softmax"))
    with made.attach(model, shape) as handle:
        torch.testing.assert_close(logits(model), before)
        keys = {key for _, key, _ in handle.multiplied}
    assert keys == made.forward_multipliers(shape).keys()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_known_model_beyond_the_base_is_multiplied_at_every_site(training: bool) -> None:
    base, model = mixtral_of_width(32), mixtral_of_width(64, num_hidden_layers=4).train(training)
    shape = hpxfer.shape_of(model)
    made, plain = by_hand(hpxfer.shape_of(base), residual_scale=0.5), logits(model)
    expected = logits(_by_weights(copy.deepcopy(model), made.forward_multipliers(shape)))
    with made.attach(model, shape) as handle:
        torch.testing.assert_close(logits(model), expected)
        assert "model.layers.3.mlp: expert_out x 0.125" in str(handle)  # residual scale, depth, 1/active
    assert torch.equal(logits(model), plain)
    assert not torch.allclose(plain, expected)


def test_a_known_model_gets_the_factors_of_embedding_and_router_that_were_tuned() -> None:
    model = mixtral_of_width(32).eval()
    shape, plain = hpxfer.shape_of(model), logits(model)
    numbers = {"embedding.forward_mult": 0.25, "router.forward_mult": 3.0, "readout.forward_mult": 2.0}
    made = by_hand(shape, **numbers)
    forward = made.forward_multipliers(shape)
    assert (forward["embedding"], forward["router"], forward["readout"]) == (0.25, 3.0, 2.0)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.embed_tokens.weight *= 0.25
        for layer in other.model.layers:
            layer.mlp.gate.weight *= 3.0
        other.lm_head.weight *= 2.0
    with made.attach(model, shape):
        torch.testing.assert_close(logits(model), logits(other))
    assert not torch.allclose(logits(other), plain)


def _by_weights(model: Any, numbers: dict[str, float]) -> Any:
    """Return the model with the multipliers in its weights, where they do the same to a single forward pass."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= numbers["attn_logits"] / layer.self_attn.scaling
            layer.self_attn.o_proj.weight *= numbers["attn_out"]
            layer.mlp.experts.down_proj *= numbers["expert_out"] * numbers["route_scale"]
        model.lm_head.weight *= numbers["readout"]
    return model


def test_a_router_is_scaled_by_its_input() -> None:
    made = by_hand({"width": 32, "depth": 2, "head_dim": 16, "num_experts": 4, "num_active": 2, "expert_width": 32})
    model = mixtral_of_width(32)
    assert "router" not in made.forward_multipliers(hpxfer.shape_of(model)), "no table of this name scales logits"
    gate = model.model.layers[0].mlp.gate
    before = gate(torch.ones(3, 32))[0]
    with attach_numbers(model, {"router": 0.25}, [("*.mlp.gate", "router")], ()):
        torch.testing.assert_close(gate(torch.ones(3, 32))[0], 0.25 * before)
    assert torch.equal(gate(torch.ones(3, 32))[0], before)


def test_removing_twice_does_nothing_more_and_attention_gets_its_scale_back() -> None:
    model = make("llama")
    shape, before = hpxfer.shape_of(model), model.model.layers[0].self_attn.scaling
    made = Recipe.from_hps("completep", shape, {"lr": 1e-3}, attention_scale="1/d_head")
    handle = made.attach(model, shape)
    assert model.model.layers[0].self_attn.scaling == 1 / 8
    handle.remove()
    model.model.layers[0].self_attn.scaling = 7.0
    handle.remove()
    assert model.model.layers[0].self_attn.scaling == 7.0
    assert before == 8**-0.5


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        (
            (*SITES, ("blocks.*.atention", "attn_out")),
            r"'blocks\.\*\.atention': must match a module, got none; did you",
        ),
        ([*SITES, ("head",)], r"attach: sites: must be a mapping of name pattern to key of .* got \('head',\)"),
        ((*SITES, ("head", "readuot")), "unknown multiplier 'readuot'; did you mean 'readout'"),
        ((*SITES, ("blocks.0.attention", "attn_logits")), "blocks.0.attention: an attention module must have a number"),
    ],
)
def test_a_site_that_is_none_is_refused_and_nothing_attached(sites: Any, said: str) -> None:
    _, plain = twins()
    before = plain(IDS)
    with pytest.raises(HpxferError, match=said):
        attach(plain, sites)
    assert torch.equal(plain(IDS), before)
    attach(plain).remove()


def test_a_second_attachment_is_refused_until_the_first_is_removed() -> None:
    _, plain = twins()
    handle = attach(plain)
    with pytest.raises(HpxferError, match=r"must have no multipliers yet, got some at .*blocks\.0\.attention.*remove"):
        attach(plain)
    handle.remove()
    attach(plain).remove()


def test_an_unknown_model_must_name_its_sites() -> None:
    with pytest.raises(
        HpxferError, match=r"the sites must be given for a model that is none of gpt2, llama, .* got OwnGPT"
    ):
        recipe().attach(twins()[1], TARGET)


def test_a_model_with_gates_of_another_size_is_refused() -> None:
    model = make("mixtral")
    shape = hpxfer.shape_of(model)
    for gate in ("sigmoid", "softmax"):
        made, said = (
            by_hand(shape, gate=gate),
            f"gate of the recipe's base model, {gate}, got normalized_softmax, which",
        )
        for call in (
            lambda made=made: made.attach(model, shape),
            lambda made=made: made.param_groups(model, hpxfer.roles(model), shape),
            lambda made=made: made.init_(model, hpxfer.roles(model), shape),
        ):
            with pytest.raises(HpxferError, match=said) as error:
                call()
            advice = str(error.value).partition("; take ")[2]
            assert "model.gate: normalized_softmax" in advice
            assert not {"sigmoid", "softmax"} & set(re.findall(r"\w+", advice)), "each of these is refused too"
    by_hand(shape, gate="normalized_sigmoid").attach(model, shape).remove()


def test_attention_that_scales_by_layer_is_refused() -> None:
    model = make("gpt2", scale_attn_by_inverse_layer_idx=True)
    shape = hpxfer.shape_of(model)
    with pytest.raises(HpxferError, match="attention must scale alike in all layers"):
        by_hand(shape, "completep").attach(model, shape)


def test_what_no_hook_does_is_said() -> None:
    model = mixtral_of_width(32)
    shape = hpxfer.shape_of(model)
    conventions = {"router_bias_std": 0.5}
    made = Recipe.from_hps(
        "mup-moe",
        shape,
        {"lr": 1e-3},
        gate="normalized_softmax",
        attention_scale="1/sqrt(d_head)",
        conventions=conventions,
    )
    with pytest.warns(ByHandWarning, match=r"add b_t ~ N\(0, 0\.5\^2\) to the router's logits") as caught:
        made.attach(model, shape).remove()
    assert [warning.filename for warning in caught] == [__file__]
    assert "By hand: before the gates" in made.describe(shape)


@pytest.mark.slow
@pytest.mark.parametrize("called_before", [False, True])
@torch.no_grad()
def test_a_compiled_model_is_multiplied_and_freed_again(called_before: bool) -> None:
    """torch.compile looks for hooks when it compiles, and never again: it must be made to start over."""
    written, plain = twins()
    compiled = torch.compile(plain.eval(), backend="eager")
    before = plain(IDS)
    if called_before:
        torch.testing.assert_close(compiled(IDS), before)
    handle = attach(compiled)
    torch.testing.assert_close(compiled(IDS), written(IDS))
    torch.testing.assert_close(plain(IDS), written(IDS))
    handle.remove()
    torch.testing.assert_close(compiled(IDS), before)


def test_a_copy_keeps_its_multipliers_and_a_state_has_none() -> None:
    written, plain = twins()
    keys = plain.state_dict().keys()
    handle = attach(plain)
    assert plain.state_dict().keys() == keys
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    buffer.seek(0)
    copies = [copy.deepcopy(plain), torch.load(buffer, weights_only=False)]
    handle.remove()
    for copied in copies:
        torch.testing.assert_close(copied(IDS), written(IDS))
        with pytest.raises(HpxferError, match="must have no multipliers yet"):
            attach(copied)


def test_base_and_target_of_the_own_model_have_the_keys_of_these_sites() -> None:
    assert recipe().forward_multipliers(BASE).keys() == {"attn_logits", *(key for _, key in SITES)}
