"""A target shape that is not the model's: refused wherever a tensor, or the config of a known model, shows it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hf_models import by_hand, make, mixtral_of_width, with_layout_of_4
from own_model import ALL_ROLES, OwnGPT
from recipe_data import multiplies
from torch import nn

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe
from hpxfer.scaling.shape import Shape

OWN = Shape(
    width=32,
    depth=2,
    num_experts=4,
    num_active=2,
    expert_width=16,
    head_dim=16,
    num_shared=2,
    shared_width=24,
    dense_width=48,
)

ROLES = {pattern: role for pattern, role in ALL_ROLES.items() if role != "hidden_bias"}


def anywhere(base: Shape) -> Recipe:
    """Return a recipe that has a way to every shape with the same heads."""
    return Recipe.from_hps("sp", base, {"lr": 2.0**-8}, gate="normalized_softmax", attention_scale="1/sqrt(d_head)")


def own() -> nn.Module:
    model = OwnGPT(OWN, 16, 8, anywhere(OWN).forward_multipliers(OWN), swiglu=True, moe_every=2)
    return multiplies(model, anywhere(OWN), OWN)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts": 8}, r"blocks\.1\.moe\.router\.weight \(router\) must have the target's num_experts 8 as one"),
        ({"expert_width": 8}, r"experts\.\*\.up\.weight \(expert_in\) must have width 32 x expert_width 8 elements"),
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
        with pytest.raises(HpxferError, match=said):
            call(model, ROLES, target)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("hidden", [8, 32])
def test_stacked_and_fused_experts_show_it_too(stacked: bool, hidden: int) -> None:
    model = make("qwen3_moe") if stacked else with_layout_of_4(make("qwen3_moe"))
    shape = hpxfer.shape_of(model)
    assert shape.expert_width == 16
    del model.config
    assert anywhere(shape).param_groups(model, hpxfer.roles(model), shape)
    with pytest.raises(HpxferError, match=rf"must have (2 x )?width 32 x expert_width {hidden} elements, once or 4 t"):
        anywhere(shape).explain(model, target_shape={**shape.dims(), "expert_width": hidden})


class Layouts(nn.Module):
    """Other layouts: experts side by side in one matrix, two shared experts as one FFN, attention and FFN as one."""

    def __init__(self) -> None:
        super().__init__()
        self.side_by_side = nn.Parameter(torch.zeros(4 * 16, 32))
        self.shared = nn.Parameter(torch.zeros(32, 2 * 24))
        self.beside_attention = nn.Parameter(torch.zeros(3 * 32 + 48, 32))


def test_other_layouts_of_the_same_experts_are_taken() -> None:
    roles = {"side_by_side": "expert_in", "shared": "shared_out", "beside_attention": "attn_q+attn_k+attn_v+dense_in"}
    model = multiplies(Layouts(), anywhere(OWN), OWN)
    assert anywhere(OWN).param_groups(model, roles, OWN)
    with pytest.raises(HpxferError, match="side_by_side"):
        anywhere(OWN).param_groups(model, roles, {**OWN.dims(), "num_experts": 7})


@pytest.mark.parametrize("changes", [{"depth": 3}, {"head_dim": 32}, {"num_active": 1}, {"width": 128}])
def test_what_no_tensor_shows_the_config_of_a_known_model_does(changes: dict[str, int]) -> None:
    model = mixtral_of_width(64)
    shape = hpxfer.shape_of(model)
    target = {**shape.dims(), **changes}
    made = anywhere(Shape(**{**shape.dims(), "head_dim": target["head_dim"]}))
    (name, value), own_value = changes.popitem(), {"depth": 2, "head_dim": 16, "num_active": 2, "width": 64}
    said = f"must be the shape of this mixtral model, whose config says {name} {own_value[name]}, got {name} {value};"
    with pytest.raises(HpxferError, match=said):
        made.param_groups(model, hpxfer.roles(model), target)
    with pytest.raises(HpxferError, match=said):
        made.attach(model, target)


def test_heads_that_follow_from_the_width_may_be_given_all_the_same() -> None:
    model = mixtral_of_width(64, num_key_value_heads=2)
    shape = hpxfer.shape_of(model).dims()
    for heads in ({"num_heads": 4}, {"num_heads": 4, "kv_heads": 2}):
        target = Shape(**{**shape, **heads})
        assert anywhere(target).param_groups(model, hpxfer.roles(model), target)
    wrong = Shape(**{**shape, "num_heads": 2})
    with pytest.raises(HpxferError, match="config says num_heads 4, got num_heads 2;"):
        anywhere(wrong).attach(model, wrong)


def test_batch_and_duration_are_no_part_of_a_model() -> None:
    model = mixtral_of_width(32)
    shape = hpxfer.shape_of(model, batch_tokens=64, steps=9)
    assert by_hand(shape).param_groups(model, hpxfer.roles(model), shape)


def test_a_known_model_whose_ffns_were_replaced_may_say_what_it_has_now() -> None:
    """Its config still tells of the FFNs that were there."""
    model: Any = make("llama", attention_bias=False, mlp_bias=False)
    for layer in model.model.layers:
        layer.mlp = make("mixtral", intermediate_size=48).model.layers[0].mlp
    shape = Shape(width=32, depth=2, num_experts=4, num_active=2, expert_width=48, head_dim=8)
    roles = hpxfer.roles(
        model,
        extra={
            "*.mlp.gate.weight": "router",
            "*.gate_up_proj": "expert_in+expert_gate",
            "*.experts.down_proj": "expert_out",
        },
    )
    assert by_hand(shape).param_groups(model, roles, shape)
    with pytest.raises(HpxferError, match="whose config says depth 2, got depth 4"):
        by_hand(shape).param_groups(model, roles, {**shape.dims(), "depth": 4})


@pytest.mark.parametrize("given", [None, {}, ROLES, iter(())], ids=["None", "state", "roles", "parameters"])
def test_what_is_no_model_is_refused(given: Any) -> None:
    made = anywhere(OWN)
    calls: list[Any] = [hpxfer.roles, lambda model: made.param_groups(model, ROLES, OWN), lambda x: made.attach(x, OWN)]
    for call in (*calls, lambda model: made.init_(model, ROLES, OWN), lambda model: made.explain(model, ROLES, OWN)):
        with pytest.raises(HpxferError, match=f"model: must be a torch.nn.Module, got {type(given).__name__}"):
            call(given)
