"""Attached multipliers are those written into a model, each output is multiplied once, and none is forgotten."""

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
from refusals import refused
from torch import nn

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import ByHandWarning, Recipe, UnattachedWarning
from hpxfer.recipe.forward_hooks import attach as attach_numbers
from hpxfer.scaling.shape import Shape

KINDS = {"gpt2": "completep", "llama": "completep", "mixtral": "completep-moe"}
KINDS |= dict.fromkeys(("qwen3_moe", "olmoe", "gpt_oss"), "sp")
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
def test_attached_multipliers_are_those_written_into_the_model_and_gradients_go_through_them(training: bool) -> None:
    written, plain = (model.train(training) for model in twins())
    assert not torch.allclose(plain(IDS), written(IDS))
    with attach(plain):
        torch.testing.assert_close(plain(IDS), written(IDS))
        plain.loss(IDS, IDS).backward()
    assert not torch.allclose(plain(IDS), written(IDS))
    written.loss(IDS, IDS).backward()
    for mine, other in zip(plain.parameters(), written.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_one_multiplier_left_out_is_noticed() -> None:
    written, plain = twins()
    for key in ("attn_out", "expert_out", "readout"):
        rest = [site for site in SITES if site[1] != key]
        refused(rf"got none for {key} \(0\.\d+\); add it, or name it in by_hand", attach, plain, rest)
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


def test_a_known_model_beyond_the_base_is_multiplied_at_every_site() -> None:
    base, model = mixtral_of_width(32), mixtral_of_width(64, num_hidden_layers=4)
    shape = hpxfer.shape_of(model)
    tuned = {"embedding.forward_mult": 0.25, "router.forward_mult": 3.0, "readout.forward_mult": 2.0}
    made, plain = by_hand(hpxfer.shape_of(base), residual_scale=0.5, **tuned), logits(model)
    expected = logits(_by_weights(copy.deepcopy(model), made.forward_multipliers(shape)))
    with made.attach(model, shape) as handle:
        torch.testing.assert_close(logits(model), expected)
        assert "model.layers.3.mlp: expert_out x 0.125" in str(handle)  # residual scale, depth, 1/active
    assert torch.equal(logits(model), plain)
    assert not torch.allclose(plain, expected)


def _by_weights(model: Any, numbers: dict[str, float]) -> Any:
    """Return the model with the multipliers in its weights, where they do the same to a single forward pass."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= numbers["attn_logits"] / layer.self_attn.scaling
            layer.self_attn.o_proj.weight *= numbers["attn_out"]
            layer.mlp.gate.weight *= numbers["router"]
            layer.mlp.experts.down_proj *= numbers["expert_out"] * numbers["route_scale"]
        model.model.embed_tokens.weight *= numbers["embedding"]
        model.lm_head.weight *= numbers["readout"]
    return model


def test_a_site_that_is_none_is_refused_and_nothing_attached() -> None:
    _, plain = twins()
    before = plain(IDS)
    for site, said in (
        (("blocks.*.atention", "attn_out"), r"'blocks\.\*\.atention': must match a module, got none; did you"),
        (("head",), r"attach: sites: must be a mapping of name pattern to key of .* got \('head',\)"),
        (("head", "readuot"), "unknown multiplier 'readuot'; did you mean 'readout'"),
        (("blocks.0.attention", "attn_logits"), "blocks.0.attention: an attention module must have a number"),
    ):
        refused(said, attach, plain, [*SITES, site])
    assert torch.equal(plain(IDS), before)
    attach(plain).remove()


def test_a_second_attachment_waits_for_the_removal_of_the_first_and_attention_gets_its_scale_back() -> None:
    _, plain = twins()
    handle = attach(plain)
    refused(r"must have no multipliers yet, got some at .*blocks\.0\.attention.*remove", attach, plain)
    handle.remove()
    attach(plain).remove()
    model: Any = make("llama")  # whose scale of attention is set alone
    given: Any = ({"attn_logits": 0.25}, [("*.self_attn", "attn_logits")], ())
    handle = attach_numbers(model, *given)
    refused("must have no multipliers yet, got some at the model", attach_numbers, nn.DataParallel(model), *given)
    handle.remove()
    assert model.model.layers[0].self_attn.scaling == 8**-0.5
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


def test_where_no_site_can_be_known_or_attention_scales_by_layer_it_is_refused() -> None:
    refused(r"sites must be given for a model that is none of gpt2, .* got OwnGPT", recipe().attach, twins()[1], TARGET)
    with pytest.raises(HpxferError, match="the sites must be given"):  # for what is not named by hand
        recipe().attach(twins()[1], TARGET, by_hand=["attn_logits", "attn_out"])
    model = make("gpt2", scale_attn_by_inverse_layer_idx=True)
    shape = hpxfer.shape_of(model)
    refused("attention must scale alike in all layers", by_hand(shape, "completep").attach, model, shape)


def test_a_model_with_gates_of_another_size_is_refused() -> None:
    model = make("mixtral")
    shape, roles = hpxfer.shape_of(model), hpxfer.roles(model)
    made, said = by_hand(shape, gate="sigmoid"), "gate of the recipe's base model, sigmoid, got normalized_softmax, wh"
    calls = (lambda: made.attach(model, shape), lambda: made.param_groups(model, roles, shape))
    for call in (*calls, lambda: made.init_(model, roles, shape)):
        with pytest.raises(HpxferError, match=said) as error:
            call()
        advice = str(error.value).partition("; take ")[2]
        assert "model.gate: normalized_softmax" in advice
        assert not {"sigmoid", "softmax"} & set(re.findall(r"\w+", advice)), "each of these is refused too"
    by_hand(shape, gate="normalized_sigmoid").attach(model, shape).remove()


def test_what_no_hook_does_is_said() -> None:
    model = mixtral_of_width(32)
    shape = hpxfer.shape_of(model)
    facts = {"gate": "normalized_softmax", "attention_scale": "1/sqrt(d_head)"}
    made = Recipe.from_hps("mup-moe", shape, {"lr": 1e-3}, conventions={"router_bias_std": 0.5}, **facts)
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
        refused("must have no multipliers yet", attach, copied)


HALF = {"attn_out": 0.5, "expert_out": 0.5, "route_scale": 2.0, "shared_out": 0.5, "dense_out": 0.5, "readout": 0.5}
HALF |= {"attn_logits": 0.5, "router": 0.5}
ALL = tuple(HALF)


class SharedMoE(nn.Module):
    """Routed experts, here one linear map, plus a shared expert."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4, bias=False)
        self.experts = nn.Linear(4, 4, bias=False)
        self.shared = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts(x) + self.shared(x)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"moe": SharedMoE()}) for _ in range(2))
        self.twin = self.layers[0]["moe"].shared  # a second name
        self.head = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer["moe"](x)
        return self.head(x)


def attached(sites: Any, model: nn.Module | None = None) -> Any:
    used = {key for _, key in sites}
    return attach_numbers(model or Blocks(), HALF, sites, [key for key in ALL if key not in used])


@pytest.mark.parametrize(
    "sites",
    [
        [("*.moe", "expert_out"), ("*.moe", "shared_out")],
        [("*.shared", "shared_out"), ("*.moe", "expert_out")],
        [("*.moe", "route_scale"), ("*.shared", "shared_out")],
        [("*.moe", "expert_out"), ("*.experts", "expert_out")],
        [("*.shared", "shared_out"), ("layers.0.moe.shared", "shared_out")],
        [("*.shared", "shared_out"), ("twin", "shared_out")],
        [("*.moe", "expert_out"), ("twin", "shared_out")],
        [("head", "readout"), ("head", "dense_out")],
        [("*.moe", "dense_out"), ("*.moe", "attn_out")],
    ],
)
def test_two_sites_that_meet_are_refused_and_nothing_is_attached(sites: list[tuple[str, str]]) -> None:
    model, x = Blocks(), torch.ones(1, 4)
    before = model(x)
    with pytest.raises(HpxferError, match="must be multiplied once, got two sites for") as error:
        attached(sites, model)
    assert all(repr(pattern) in str(error.value) and key in str(error.value) for pattern, key in sites)
    assert torch.equal(model(x), before)


@pytest.mark.parametrize(
    "sites",
    [
        [("*.experts", "route_scale"), ("*.moe", "expert_out")],
        [("*.moe", "expert_out"), ("*.gate", "router"), ("head", "readout")],
    ],
)
def test_a_factor_on_a_layer_is_refused_where_the_model_multiplies_its_shared_experts(sites: Any) -> None:
    """By hand and by the hook, the factor 0.5 of shared experts was 0.25."""
    with pytest.raises(HpxferError) as error:
        attached(sites)
    assert str(error.value).startswith(
        "attach: a module must be multiplied once, got two sites for layers.0.moe.shared, which is part of "
        "layers.0.moe, and 1 more: '*.moe' (expert_out) and 'by_hand' (shared_out); name for each key the module that"
    )
    numbers = {key: by for key, by in HALF.items() if key != "shared_out"}  # a target without shared experts
    used = {key for _, key in sites}
    attach_numbers(Blocks(), numbers, sites, numbers.keys() - used).remove()
    attach_numbers(Blocks(), {**HALF, "expert_out": 1.0}, sites, HALF.keys() - used).remove()  # the factor is none
    both = [("*.moe", "expert_out"), ("*.moe", "route_scale")]
    attach_numbers(Blocks(), {**HALF, "route_scale": 2.0}, both, set(ALL) - {"expert_out", "route_scale"}).remove()


@pytest.mark.parametrize(
    ("sites", "by_hand", "said"),
    [
        (
            [("*.moe", "expert_out"), ("*.shared", "shared_out")],
            None,
            "attach: a module must be multiplied once, got two sites for layers.0.moe.shared, which is part of "
            "layers.0.moe, and 1 more: '*.moe' (expert_out) and '*.shared' (shared_out); "
            "name for each key the module that returns",
        ),
        (
            [("layers.0*", "expert_out")],
            None,
            "got two sites for layers.0.moe, which is part of layers.0, ...`*` matches dots too, and [0-9] a digit",
        ),
        ([("head", "readout")], ALL, "by_hand: readout must have no site, got 'head', which would multiply again"),
        (
            [("head", "readout")],
            "shared_out",
            "attach: by_hand: must be a list of keys, got 'shared_out'; give ['shared_out']",
        ),
    ],
)
def test_what_a_refusal_says(sites: Any, by_hand: Any, said: str) -> None:
    rest = [key for key in ALL if key not in {key for _, key in sites}]
    with pytest.raises(HpxferError) as error:
        attach_numbers(Blocks(), HALF, sites, rest if by_hand is None else by_hand)
    for part in said.split(" ..."):
        assert part in str(error.value)


def test_shared_experts_and_a_module_with_two_names_are_multiplied_once() -> None:
    """The factor 0.5 of shared experts in a layer with the factor 0.5 was 0.25."""
    model, x = Blocks(), torch.ones(1, 4)
    moe: Any = model.layers[0]["moe"]
    before = moe(x)
    with attached([("*.experts", "expert_out"), ("*.shared", "shared_out")], model):
        torch.testing.assert_close(moe(x), before / 2)
    before = model.twin(x)
    with attached([("*shared", "shared_out")], model):
        torch.testing.assert_close(model.twin(x), before / 2)
    model.also = model.twin
    with attached([("[at]*", "shared_out")], model):  # `also` and `twin`
        torch.testing.assert_close(model.twin(x), before / 2)
    attached([("*.experts", "expert_out"), ("*.experts", "route_scale"), ("*.shared", "shared_out")]).remove()
    attached([("*.shared", "shared_out"), ("", "readout")]).remove()


def wide() -> tuple[Recipe, Any, Any]:
    model = mixtral_of_width(64)
    return by_hand(hpxfer.shape_of(mixtral_of_width(32))), model, hpxfer.shape_of(model)


def use(made: Recipe, model: nn.Module, shape: Any) -> None:
    roles = hpxfer.roles(model)
    made.init_(model, roles, shape)
    made.param_groups(model, roles, shape)


@pytest.mark.parametrize("call", ["init_", "param_groups"])
def test_a_forgotten_attachment_is_warned_of_once_per_model_at_the_line_of_the_user(call: str) -> None:
    made, model, shape = wide()
    with pytest.warns(UnattachedWarning, match="MixtralForCausalLM does not multiply by") as seen:
        getattr(made, call)(model, hpxfer.roles(model), shape)
    use(made, torch.nn.DataParallel(model), shape)
    assert [warning.filename for warning in seen] == [__file__]
    assert "call recipe.attach(model, shape) before init_ and param_groups" in str(seen[0].message)
    with pytest.warns(UnattachedWarning):
        use(made, copy.deepcopy(model), shape)


def test_the_numbers_of_this_recipe_attached_or_by_hand_are_enough_and_nothing_else() -> None:
    for given in ({}, {"sites": (), "by_hand": True}):
        made, model, shape = wide()
        if given:
            given["by_hand"] = made.forward_multipliers(shape)
        handle = made.attach(model, shape, **given)
        use(made, model, shape)
        use(made, torch.nn.DataParallel(model), shape)
        handle.remove()
        with pytest.warns(UnattachedWarning):
            use(made, model, shape)
    made, model, shape = wide()
    by_hand(shape).attach(model, shape)
    with pytest.warns(UnattachedWarning, match=r"of another recipe or shape: readout 1 in place of 0\.5"):
        use(made, model, shape)
    # 1/num_active and the scale of gates that sum to one cancel, and attention scales as it did.
    _, model, shape = wide()
    use(by_hand(shape), model, shape)
    halved = Recipe.from_hps("completep-moe", shape, {"lr": 1e-3}, gate="normalized_softmax")  # attention 1/d_head
    with pytest.warns(UnattachedWarning, match=r"does not multiply by attn_logits \(0\.0625\), and"):
        use(halved, model, shape)
    base = {**BASE, "head_dim": 8}
    made = Recipe.from_hps("completep-moe", base, {"lr": 1e-3, "residual_scale": 0.3125}, attention_scale="1/d_head")
    model = nn.ModuleDict({"lm_head": nn.Linear(32, 48, bias=False)})
    for ask in (made.describe, made.forward_multipliers, made.multipliers):
        ask(base)
    said = r"this ModuleDict does not multiply by attn_logits \(0\.125\), attn_out \(0\.3125\), expert_out"
    with pytest.warns(UnattachedWarning, match=said):
        use(made, model, base)
    made.attach(model, base, by_hand=["attn_logits", "attn_out", "expert_out"])
    use(made, model, base)
