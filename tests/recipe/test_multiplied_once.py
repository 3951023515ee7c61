"""Each output is multiplied once: two sites that meet are refused, and a model without its multipliers is warned of."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from hf_models import by_hand, make, mixtral_of_width
from recipe_data import BASE
from torch import nn

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe, UnattachedWarning
from hpxfer.recipe.forward_hooks import attach

HALF = {"attn_out": 0.5, "expert_out": 0.5, "route_scale": 2.0, "shared_out": 0.5, "dense_out": 0.5, "readout": 0.5}
HALF |= {"attn_logits": 0.5, "router": 0.5}
ALL = tuple(HALF)


class MoE(nn.Module):
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
        self.layers = nn.ModuleList(nn.ModuleDict({"moe": MoE()}) for _ in range(2))
        self.twin = self.layers[0]["moe"].shared  # a second name
        self.head = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer["moe"](x)
        return self.head(x)


def attached(sites: Any, model: nn.Module | None = None) -> Any:
    used = {key for _, key in sites}
    return attach(model or Blocks(), HALF, sites, [key for key in ALL if key not in used])


@pytest.mark.parametrize(
    "sites",
    [
        [("*.moe", "expert_out"), ("*.moe", "shared_out")],
        [("*.moe", "expert_out"), ("*.shared", "shared_out")],
        [("*.shared", "shared_out"), ("*.moe", "expert_out")],
        [("*.moe", "route_scale"), ("*.shared", "shared_out")],
        [("*.moe", "expert_out"), ("*.experts", "expert_out")],
        [("*.shared", "shared_out"), ("layers.0.moe.shared", "shared_out")],
        [("*.shared", "shared_out"), ("twin", "shared_out")],
        [("*.moe", "expert_out"), ("twin", "shared_out")],
        [("*.shared", "shared_out"), ("*.shared", "shared_out")],
        [("layers.0*", "expert_out")],
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


def test_the_refusal_names_the_module_both_sites_and_what_to_do() -> None:
    with pytest.raises(HpxferError) as error:
        attached([("*.moe", "expert_out"), ("*.shared", "shared_out")])
    assert str(error.value).startswith(
        "attach: a module must be multiplied once, got two sites for layers.0.moe.shared, which is part of "
        "layers.0.moe, and 1 more: '*.moe' (expert_out) and '*.shared' (shared_out); "
        "name for each key the module that returns"
    )


def test_a_site_by_hand_too_is_refused() -> None:
    with pytest.raises(
        HpxferError, match=r"by_hand: readout must have no site, got 'head', which would multiply again"
    ):
        attach(Blocks(), HALF, [("head", "readout")], ALL)


@pytest.mark.parametrize(
    "sites",
    [
        [("*.experts", "expert_out"), ("*.experts", "route_scale"), ("*.shared", "shared_out")],
        [("*.shared", "shared_out"), ("", "readout")],
    ],
)
def test_sites_that_do_not_meet_are_taken(sites: list[tuple[str, str]]) -> None:
    attached(sites).remove()


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
    assert str(error.value) == (
        "attach: a module must be multiplied once, got the site '*.moe' (expert_out) for layers.0.moe and 1 more, "
        "which returns what layers.0.moe.shared gives too, and shared_out by hand; name the module that returns the "
        "routed experts alone, or name expert_out in by_hand too"
    )
    numbers = {key: by for key, by in HALF.items() if key != "shared_out"}  # a target without shared experts
    used = {key for _, key in sites}
    attach(Blocks(), numbers, sites, numbers.keys() - used).remove()
    attach(Blocks(), {**HALF, "expert_out": 1.0}, sites, HALF.keys() - used).remove()  # the layer's factor is none
    both = [("*.moe", "expert_out"), ("*.moe", "route_scale")]
    attach(Blocks(), {**HALF, "route_scale": 2.0}, both, set(ALL) - {"expert_out", "route_scale"}).remove()


def test_a_pattern_that_names_a_part_of_its_module_too_is_told_so() -> None:
    with pytest.raises(HpxferError, match=r"'layers\.0\*' \(expert_out\) names layers\.0\.moe, which is part") as error:
        attached([("layers.0*", "expert_out")])
    assert "`*` matches dots too, and [0-9] a digit alone" in str(error.value)


def test_by_hand_must_be_keys_and_not_one_string() -> None:
    with pytest.raises(HpxferError) as error:
        attach(Blocks(), HALF, [("head", "readout")], "shared_out")
    assert str(error.value) == "attach: by_hand: must be a list of keys, got 'shared_out'; give ['shared_out']"


def test_a_module_with_two_names_is_multiplied_once() -> None:
    model, x = Blocks(), torch.ones(1, 4)
    before = model.twin(x)
    with attached([("*shared", "shared_out")], model):
        torch.testing.assert_close(model.twin(x), before / 2)
    model.also = model.twin
    with attached([("[at]*", "shared_out")], model):  # `also` and `twin`
        torch.testing.assert_close(model.twin(x), before / 2)


def test_shared_experts_get_their_factor_once() -> None:
    """The factor 0.5 of shared experts in a layer with the factor 0.5 was 0.25."""
    model, x = Blocks(), torch.ones(1, 4)
    moe: Any = model.layers[0]["moe"]
    before = moe(x)
    with attached([("*.experts", "expert_out"), ("*.shared", "shared_out")], model):
        torch.testing.assert_close(moe(x), before / 2)


def test_a_scale_of_attention_alone_is_attached_once_too() -> None:
    model = make("llama")
    attention: Any = model.model.layers[0].self_attn
    numbers = {"attn_logits": 0.25}
    handle = attach(model, numbers, [("*.self_attn", "attn_logits")], ())
    with pytest.raises(HpxferError, match="must have no multipliers yet, got some at the model"):
        attach(torch.nn.DataParallel(model), numbers, [("*.self_attn", "attn_logits")], ())
    handle.remove()
    assert attention.scaling == 8**-0.5


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


def test_in_the_documented_order_there_is_no_warning() -> None:
    made, model, shape = wide()
    made.attach(model, shape)
    use(made, model, shape)
    use(made, torch.nn.DataParallel(model), shape)


def test_removed_multipliers_are_missed_again() -> None:
    made, model, shape = wide()
    made.attach(model, shape).remove()
    with pytest.warns(UnattachedWarning):
        use(made, model, shape)


def test_the_multipliers_of_another_recipe_are_not_these() -> None:
    made, model, shape = wide()
    by_hand(shape).attach(model, shape)
    with pytest.warns(UnattachedWarning, match=r"of another recipe or shape: readout 1 in place of 0\.5"):
        use(made, model, shape)


def test_at_the_base_nothing_is_missing() -> None:
    """1/num_active and the scale of gates that sum to one cancel, and attention scales as it did."""
    _, model, shape = wide()
    use(by_hand(shape), model, shape)
    halved = Recipe.from_hps("completep-moe", shape, {"lr": 1e-3}, gate="normalized_softmax")  # attention 1/d_head
    with pytest.warns(UnattachedWarning, match=r"does not multiply by attn_logits \(0\.0625\), and"):
        use(halved, model, shape)


def test_asking_for_numbers_is_no_evidence_that_a_model_of_ones_own_multiplies_by_them() -> None:
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


def test_what_is_not_named_by_hand_needs_a_site() -> None:
    made = Recipe.from_hps("completep-moe", {**BASE, "head_dim": 8}, {"lr": 1e-3, "residual_scale": 0.3125})
    with pytest.raises(HpxferError, match="the sites must be given"):
        made.attach(nn.Linear(32, 48), {**BASE, "head_dim": 8}, by_hand=["attn_logits", "attn_out"])


def test_a_known_model_is_not_taken_to_multiply_and_may_say_that_it_does() -> None:
    made, model, shape = wide()
    numbers = made.forward_multipliers(shape)
    with pytest.warns(UnattachedWarning):
        use(made, model, shape)
    with warnings.catch_warnings(), made.attach(model, shape, sites=(), by_hand=numbers):
        warnings.simplefilter("error")
        use(made, model, shape)
