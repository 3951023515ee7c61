"""A recipe on a torch model: groups, initialization, forward multipliers, and what they refuse."""

from __future__ import annotations

import copy
import math
import pickle
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from own_model import ROLES, ROLES_WITH_BIASES, OwnGPT
from recipe_data import BASE, TARGET, data, multiplies, recipe
from refusals import refused
from torch import nn

from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe
from hpxfer.scaling.shape import Shape

SHAPE = Shape(**TARGET)
VOCAB, CONTEXT = 40, 8


def own(made: Recipe | None = None, **options: bool) -> OwnGPT:
    made = made or recipe()
    model = OwnGPT(SHAPE, VOCAB, CONTEXT, made.forward_multipliers(SHAPE), **options)
    return multiplies(model, made, SHAPE)


def sgd() -> Recipe:
    fitted = data()["fitted"]["axes"]
    return recipe(parameterization={"name": "sp"}, optimizer="sgd", fitted__axes=fitted)


def named_groups(made: Recipe, model: nn.Module, roles: Any = ROLES) -> dict[str, dict[str, Any]]:
    return {name: group for group in made.param_groups(model, roles, TARGET) for name in group["names"]}


def test_groups_hold_each_parameter_once_and_differ_in_numbers() -> None:
    model = own()
    groups = recipe().param_groups(model, ROLES, TARGET)
    tensors = [id(tensor) for group in groups for tensor in group["params"]]
    assert len(tensors) == len(set(tensors)) == len(list(model.parameters()))
    numbers = [(group["lr"], group["weight_decay"], group["eps"]) for group in groups]
    assert len(numbers) == len(set(numbers))
    by_roles = [set(group["roles"]) for group in groups]
    assert {"attn_q", "attn_k", "attn_v", "attn_out"} in by_roles
    assert len(groups) < len(ROLES)
    by_name = dict(model.named_parameters())
    for group in groups:
        assert all(by_name[name] is tensor for name, tensor in zip(group["names"], group["params"], strict=True))
    groups = sgd().param_groups(own(sgd()), ROLES, TARGET)
    # The router's LR has a constant multiplier of its own.
    found = sorted((group["lr"], group["weight_decay"]) for group in groups)
    assert found == [(2.0**-8, 0.1), (2.0**-6, 0.0), (2.0**-6, 0.1)]
    assert all(group.keys() == {"params", "lr", "peak_lr", "weight_decay", "names", "roles"} for group in groups)


@pytest.mark.parametrize(("made", "kind"), [(recipe(), torch.optim.AdamW), (sgd(), torch.optim.SGD)])
def test_torch_optimizers_take_the_groups_and_their_state_survives(made: Recipe, kind: Any) -> None:
    model = made.init_(own(made), ROLES, TARGET, generator=torch.Generator().manual_seed(1))
    optimizer = kind(made.param_groups(model, ROLES, TARGET))
    before = copy.deepcopy(model.state_dict())
    tokens = torch.arange(2 * CONTEXT).view(2, CONTEXT) % VOCAB
    model.loss(tokens, tokens).backward()
    optimizer.step()
    assert not torch.equal(model.head.weight, before["head.weight"])
    twin = copy.deepcopy(model)
    again = kind(made.param_groups(twin, ROLES, TARGET))
    again.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    assert [group["lr"] for group in again.param_groups] == [group["lr"] for group in optimizer.param_groups]
    for which, step in ((model, optimizer), (twin, again)):
        step.zero_grad()
        which.loss(tokens, tokens).backward()
        step.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("roles", [ROLES, {name: role for name, role in ROLES.items() if role != "readout"}])
def test_tied_weights_are_one_embedding(roles: Any) -> None:
    made, model = recipe(model__tied_embeddings=True), own(tied=True)
    groups = named_groups(made, model, roles)
    assert "head.weight" not in groups
    assert groups["token_embedding.weight"]["lr"] == made.multipliers(TARGET)["embedding"].lr
    made.init_(model, roles, TARGET)
    assert model.head.weight is model.token_embedding.weight
    assert model.head.weight.std().item() == pytest.approx(0.5, rel=0.1)


def test_frozen_parameters_are_left_out_but_must_have_a_role() -> None:
    model = own()
    model.token_embedding.weight.requires_grad_(False)
    for block in model.blocks:
        del block.moe.router_bias
        block.moe.router_bias = nn.Parameter(torch.ones(8), requires_grad=False)
    names = named_groups(recipe(), model)
    assert not [name for name in names if "router_bias" in name or name == "token_embedding.weight"]
    fewer = {name: role for name, role in ROLES.items() if role != "embedding"}
    refused(r"none for token_embedding\.weight;", recipe().param_groups, model, fewer, TARGET)
    recipe().init_(model, ROLES, TARGET)
    assert not model.blocks[0].moe.router_bias.any()
    assert recipe(hps__multipliers={"router_bias.lr_mult": 3.0}).router_bias_lr(TARGET) == pytest.approx(0.03)


def test_shared_weights_with_two_other_roles_are_refused() -> None:
    model = own()
    model.blocks[0].attention.key.weight = model.blocks[0].attention.query.weight
    with pytest.raises(HpxferError, match=r"query\.weight \(attn_q\), .*key\.weight \(attn_k\) are one tensor"):
        recipe().param_groups(model, ROLES, TARGET)


def test_a_router_bias_that_the_optimizer_would_lose_is_refused_by_name() -> None:
    """The optimizer trained 35 of 37 parameters of a gpt-oss, and nothing said so."""
    model = own()
    for block in model.blocks:
        del block.moe.router_bias
        block.moe.router_bias = nn.Parameter(torch.ones(8))
    said = r"blocks\.\*\.moe\.router_bias \(router_bias\): .*give it the role hidden_b.*\(3 tensors\)"
    for call in (recipe().param_groups, recipe().init_, recipe().explain):
        refused(said, call, model, ROLES, TARGET)
    learned = named_groups(recipe(model__biases=True), model, {**ROLES, "*.moe.router_bias": "hidden_bias"})
    assert learned.keys() == {name for name, _ in model.named_parameters()}


def test_only_buffers_of_router_biases_are_initialized() -> None:
    model = own()
    model.register_buffer("mask", torch.ones(3))
    model.blocks[1].moe.router_bias.fill_(7.0)
    recipe().init_(model, {**ROLES, "mask*": "position"}, TARGET)
    assert not model.blocks[1].moe.router_bias.any()
    assert torch.equal(model.mask, torch.ones(3))


def test_a_model_that_roles_do_not_fit_is_refused_untouched() -> None:
    model = own(biases=True)
    before = copy.deepcopy(model.state_dict())
    for call in (recipe().param_groups, recipe().init_):
        with pytest.raises(HpxferError) as error:
            call(model, {**ROLES, "*.gate.weight": "expert_gate"}, TARGET)
        unmatched, unused = str(error.value).splitlines()
        patterns = unmatched.partition("got none for ")[2].partition(";")[0].split(", ")
        assert all(any(fnmatchcase(name, each) for each in patterns) for name in before if name.endswith(".bias"))
        assert ".weight" not in unmatched
        assert "'*.gate.weight'" in unused
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_what_does_not_fit_the_target_is_told_apart() -> None:
    with pytest.raises(HpxferError) as error:
        recipe().param_groups(own(), {**ROLES, "*.up.weight": "shared_in", "*.down.weight": "dense_out"}, TARGET)
    no_rule, no_dim = str(error.value).splitlines()
    assert "'*.up.weight': shared_in: completep-moe has no rule for it; it has: embedding, position" in no_rule
    assert "'*.down.weight': dense_out: the recipe's base_shape has no dense_width" in no_dim
    with pytest.raises(HpxferError) as error:
        recipe().param_groups(own(), ROLES, {**TARGET, "width": 32, "expert_width": 64})
    lines = str(error.value).splitlines()
    assert "target_shape: token_embedding.weight (embedding) must have the target's width 32" in lines[0]
    assert "got size (40, 64); give the shape of this model" in lines[0]
    # Every matrix but one: 1 + 1 + 1 around the blocks, and 4 + 1 + 2 of 8 experts in each of 3 blocks.
    assert len(lines) == 3 + 7
    assert lines[-2].endswith("(24 tensors)")


@pytest.mark.parametrize(("size", "hint"), [(64, "norm"), (8 * 64, "two dimensions"), (8, "hidden_bias")])
def test_a_vector_of_a_router_is_called_a_bias_only_if_it_can_be_one(size: int, hint: str) -> None:
    model: Any = own()
    for block in model.blocks:
        block.moe.router.weight = nn.Parameter(torch.ones(size))
    said = rf"router\.weight: a tensor of role router must be a matrix.*{hint}"
    with pytest.raises(HpxferError, match=said) as error:
        recipe().param_groups(model, ROLES, TARGET)
    assert ("hidden_bias" in str(error.value)) == (size == 8)


@pytest.mark.parametrize(
    ("role", "size", "fits"),
    [
        *(("norm", (192, 64), False), ("norm", (8, 64), False)),  # the second is a router
        *(("norm", (64,), True), ("norm", (3, 64), True), ("norm", (4, 16), True)),  # of all layers, or one per head
        *(("hidden_bias", (64, 64), False), ("hidden_bias", (8, 128), True)),  # one per expert
        *(("hidden_bias", (3, 8, 1, 128), True), ("hidden_bias", (3, 4, 16), True)),  # of q, k and v, per head
        ("attn_q", (64,), False),
    ],
)
def test_a_gain_or_bias_is_a_vector_or_one_per_layer_head_or_expert(role: str, size: Any, fits: bool) -> None:
    made, model = recipe(model__biases=role == "hidden_bias"), own()
    model.other = nn.Parameter(torch.ones(size))
    if fits:
        made.param_groups(model, {**ROLES, "other": role}, TARGET)
        return
    wanted = "matrix, got size" if role == "attn_q" else "vector, or one per layer"
    with pytest.raises(HpxferError, match=f"other: a tensor of role {role} must be a {wanted}"):
        made.param_groups(model, {**ROLES, "other": role}, TARGET)


def test_a_target_that_is_no_shape_is_refused() -> None:
    call = recipe().forward_multipliers
    refused("target_shape: must give depth", call, {"width": 64})
    refused("target_shape: wdith: unknown key; did you mean 'width'", call, {**TARGET, "wdith": 1})
    refused("target_shape: num_active must be at most num_experts", call, {**TARGET, "num_active": 9})


def test_every_tensor_starts_with_the_std_of_its_role_in_every_layout() -> None:
    made = recipe(hps__multipliers={"attn_q.init_mult": 2.0})
    model = made.init_(own(biases=True), ROLES_WITH_BIASES, TARGET, generator=torch.Generator().manual_seed(3))
    matrices = {
        "token_embedding": 0.5,
        "position_embedding": 0.25,
        "blocks.1.attention.query": 2 * 1.5 * 64**-0.5,
        "blocks.2.attention.out": 1.5 * 64**-0.5,
        "blocks.0.moe.router": 1.5 * 32**-0.5 / 2,  # width^-1
        "blocks.2.moe.experts.5.up": 1.5 * 64**-0.5,
        "blocks.2.moe.experts.5.down": 1.5 * 32**-0.5 * 2**-0.5 / 2,  # width^-1/2 expert_ratio^-1
        "head": 1.5 * 32**-0.5,
    }
    for name, std in matrices.items():
        tensor = model.get_submodule(name).weight
        error = std / math.sqrt(2 * tensor.numel())
        assert abs(tensor.std().item() - std) < 4 * error, name
        assert abs(tensor.mean().item()) < 4 * std / math.sqrt(tensor.numel()), name
    other = made.init_(own(biases=True), ROLES_WITH_BIASES, TARGET, generator=torch.Generator().manual_seed(4))
    assert not torch.equal(other.head.weight, model.head.weight), "the generator decides"
    zero = recipe(parameterization={"name": "completep-moe", "conventions": {"router_init_exponent": "inf"}})
    assert not zero.init_(own(zero), ROLES, TARGET).blocks[0].moe.router.weight.any()
    assert torch.equal(model.norm.weight, torch.ones(64))
    assert not any(tensor.any() for name, tensor in model.named_parameters() if name.endswith("bias"))
    sizes = ((64, 128), (128, 64), (8, 64, 128), (8, 128, 64), (8 * 128, 64))
    std = recipe().multipliers(TARGET)["expert_out"].init_std
    for size in sizes:
        model = multiplies(nn.ParameterList([nn.Parameter(torch.empty(size))]), recipe(), TARGET)
        recipe().init_(model, {"*": "expert_out"}, TARGET, generator=torch.Generator().manual_seed(5))
        (tensor,) = model.parameters()
        assert abs(tensor.std().item() / std - 1) < 4 / math.sqrt(2 * tensor.numel()), tensor.shape


def test_forward_multipliers_are_absolute_and_optional_layers_have_some_where_both_shapes_do() -> None:
    depth, width, active = 3 / 2, 64 / 32, 2 / 1
    assert recipe().forward_multipliers(TARGET) == pytest.approx(
        {"attn_logits": 1 / 16, "attn_out": 0.7 / depth, "expert_out": 0.7 / depth / active, "readout": 1 / width}
    )
    base = recipe(base_shape__num_active=2).forward_multipliers({**BASE, "num_active": 2})
    assert base == pytest.approx({"attn_logits": 1 / 16, "attn_out": 0.7, "expert_out": 0.35, "readout": 1.0})
    assert recipe(model__attention_scale="1/sqrt(d_head)").forward_multipliers(SHAPE)["attn_logits"] == 0.25
    sites = recipe().forward_sites()
    assert sites.keys() == recipe().forward_multipliers(TARGET).keys()
    assert "gate = sigmoid(router logit)" in sites["expert_out"]
    assert "gate = route_scale * softmax" in recipe(model__gate="softmax").forward_sites()["expert_out"]
    ranges = data()["fitted"]["axes"]
    ranges["joint"]["dims"] |= {"dense_ratio": [2.0, 4.0]}
    made = recipe(base_shape__dense_width=64, fitted__axes=ranges)
    assert made.forward_multipliers({**TARGET, "dense_width": 128})["dense_out"] == pytest.approx(0.7 / 1.5)
    assert "dense_out" not in recipe().forward_multipliers(TARGET)
    refused("the base has dense FFNs and the target has none", made.forward_multipliers, TARGET)


def test_a_description_has_the_numbers_and_the_places() -> None:
    text = recipe().describe(TARGET)
    for key, value in recipe().forward_multipliers(TARGET).items():
        line = next(line for line in text.splitlines() if line.strip().startswith(key))
        assert f"{value:.6g}" in line
        assert recipe().forward_sites()[key] in line
    for role, at in recipe().multipliers(TARGET).items():
        if role != "router_bias":
            line = next(line for line in text.splitlines() if line.split()[:1] == [role] and f"{at.eps:.6g}" in line)
            assert f"{at.lr:.6g}" in line
            start = "ones" if role in ("norm", "final_norm") else f"{at.init_std:.6g}" if at.init_std else "zeros"
            assert line.split()[1] == start
    assert "Router bias: bias -= 0.01 * (load - 0.25)" in text
    assert "warning" not in text
    assert "warning: depth 9: fitted from 2 to 4" in recipe().describe({**TARGET, "depth": 9})
    note = "(batch_tokens and steps as at the base)"
    assert note in text
    assert note not in recipe().describe({**TARGET, "batch_tokens": 512, "steps": 400})
