"""What a recipe says it was tuned on, and which differences of a target it sees, says once, and cannot see."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from hf_models import ATTENTION, make
from own_model import ROLES, ROLES_WITH_BIASES, OwnGPT
from recipe_data import BASE, multiplies, recipe
from torch import nn

import hpxfer
from hpxfer.recipe import OtherModelWarning, Recipe, UnattachedWarning
from hpxfer.scaling.shape import Shape


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
    sizes = {"width": 32, "depth": 2, "num_experts": 0, "num_active": 0, "expert_width": 0, "head_dim": 8}
    sizes["kv_heads"] = 2
    base = {**sizes, "dense_width": 48, "batch_tokens": 512, "steps": 200}
    facts = {f"model__{name}": value for name, value in model.items()}
    return recipe(parameterization={"name": "completep", "conventions": {}}, base_shape=base, fitted__axes={}, **facts)


def test_the_model_of_the_sweep_differs_in_nothing() -> None:
    model = own()
    assert said(lambda: recipe().param_groups(model, ROLES, BASE)) == []
    assert said(lambda: recipe().explain(model, ROLES, BASE)) == []


def test_a_llama_is_another_model_than_the_gpt_of_the_sweep_and_each_difference_is_said_once() -> None:
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


def test_what_no_model_shows_is_said_with_the_value_of_the_base() -> None:
    model = make("llama")
    (text,) = said(lambda: swept().param_groups(model, hpxfer.roles(model), hpxfer.shape_of(model)))
    for part in (
        "schedule (constant after 20 steps of warm-up)",
        "batch (512 tokens)",
        "tokens (102400 in 200 steps)",
        "gradient clipping (none)",
        "precision (float32)",
        "tokenizer (ascii, 128 ids)",
    ):
        assert part in text
    assert said(lambda: swept().explain(model)) == [], "one warning a model"
    shape = {**hpxfer.shape_of(model).dims(), "batch_tokens": 512, "steps": 200}
    (text,) = said(lambda: swept().param_groups(model, hpxfer.roles(model), shape))
    assert "batch (" not in text
    assert "tokens (102400" not in text


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"biases": True}, "biases of the matrices: none at the base, some in the target"),
        ({"tied": True}, "readout: a matrix of its own at the base, tied to the embedding in the target"),
        ({"swiglu": True}, "FFN: GELU without a gate at the base, SwiGLU in the target"),
    ],
)
def test_each_option_of_ones_own_model_is_seen(options: dict[str, bool], difference: str) -> None:
    model = own(**options)
    roles = {**ROLES_WITH_BIASES} if options.get("biases") else {**ROLES}
    roles |= {"*.gate.weight": "expert_gate"} if options.get("swiglu") else {}
    (text,) = said(lambda: recipe().param_groups(model, roles, BASE))
    assert [line.strip() for line in text.splitlines()[1:-1]] == [difference]


def test_gates_and_norms_on_queries_and_keys_are_seen() -> None:
    model = make("qwen3_moe", norm_topk_prob=True, mlp_only_layers=[])
    shape = hpxfer.shape_of(model)
    made = Recipe.from_hps(
        "sp", shape, {"lr": 1e-3}, gate="normalized_sigmoid", attention_scale=ATTENTION, qk_norm=False, norm="rmsnorm"
    )
    (text,) = said(lambda: made.param_groups(model, hpxfer.roles(model), shape))
    assert [line.strip() for line in text.splitlines()[1:-1]] == [
        "norms on queries and keys: none at the base, some in the target",
        "gate: normalized_sigmoid at the base, normalized_softmax in the target",
    ]


def test_the_same_model_by_hand_differs_in_nothing_and_what_nobody_said_is_not_compared() -> None:
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
    last = str(recipe().explain(own(), ROLES, BASE)).splitlines()[-1]
    assert last.startswith("  not seen in the target, so compare it yourself: gate (sigmoid), optimizer (adamw)")


def test_a_recipe_states_what_it_was_tuned_on() -> None:
    line = next(line for line in recipe().describe(BASE).splitlines() if line.startswith("tuned on: "))
    for part in ("norm LayerNorm", "positions learned positions", "FFN GELU without a gate", "gate sigmoid"):
        assert part in line
    for part in ("attention scale 1/d_head", "schedule constant after 20 steps", "batch 512 tokens", "optimizer adamw"):
        assert part in line


def test_the_facts_of_a_recipe_by_hand_are_kept() -> None:
    made = Recipe.from_hps("sp", BASE, {"lr": 0.1}, norm="rmsnorm", positions="rope", attention_ratio=2.0)
    again = Recipe.parse(made.dump())
    assert again == made
    assert (again.file.model.norm, again.file.model.attention_ratio) == ("rmsnorm", 2.0)
    with pytest.raises(hpxfer.HpxferError, match="norm"):
        Recipe.from_hps("sp", BASE, {"lr": 0.1}, norm="batchnorm")


def test_both_warnings_stand_side_by_side() -> None:
    model = make("llama")
    made = swept(attention_scale="1/d_head")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.param_groups(model, hpxfer.roles(model), hpxfer.shape_of(model))
    assert [one.category for one in caught] == [UnattachedWarning, OtherModelWarning]


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


@pytest.mark.parametrize(
    ("norm", "kind", "other"), [(nn.LayerNorm, "layernorm", "rmsnorm"), (nn.RMSNorm, "rmsnorm", "layernorm")]
)
def test_a_norm_without_gains_shows_its_kind(norm: type[nn.Module], kind: str, other: str) -> None:
    assert differences_of(Plain(norm), norm=kind) == ()
    (said,) = differences_of(Plain(norm), norm=other)
    assert said.startswith("norm: ")


def test_norms_on_queries_and_keys_are_seen_without_gains_and_not_denied_where_nothing_shows() -> None:
    assert differences_of(Plain(None), qk_norm=True) == differences_of(Plain(None), qk_norm=False) == ()
    assert differences_of(Plain(None, L2Norm()), qk_norm=True, norm="rmsnorm") == ()
    (said,) = differences_of(Plain(nn.RMSNorm, L2Norm()), qk_norm=False)
    assert said == "norms on queries and keys: none at the base, some in the target"
