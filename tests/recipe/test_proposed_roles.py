"""Matching patterns with names, and proposed roles: every parameter of known models, and the common names of others."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hf_models import by_hand, make, with_layout_of_4
from hypothesis import given
from hypothesis import strategies as st
from own_model import ROLES_WITH_BIASES, OwnGPT
from recipe_data import BASE
from refusals import refused
from torch import nn

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.recipe.match import match_roles
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape

NAMES = ["emb.weight", "blocks.0.up.weight", "blocks.0.up.bias", "blocks.1.up.weight", "blocks.1.up.bias"]
PATTERNS = {"emb.*": "embedding", "*.up.weight": "expert_in", "*.bias": "hidden_bias"}


def match(roles: Any, names: list[str] | None = None, optional: list[str] | None = None) -> dict[str, str]:
    return match_roles(NAMES if names is None else names, optional or [], roles, {"shared_in": "no such layer"})


def test_every_name_gets_its_role_the_first_match_wins_and_some_names_need_none() -> None:
    expected = ["embedding", "expert_in", "hidden_bias", "expert_in", "hidden_bias"]
    for roles in (PATTERNS, list(PATTERNS.items()), [list(pair) for pair in PATTERNS.items()], iter(PATTERNS.items())):
        assert match(roles) == dict(zip(NAMES, expected, strict=True))
    first = match([("blocks.0.*", "dense_in"), *PATTERNS.items()])
    assert [first[name] for name in NAMES] == ["embedding", "dense_in", "dense_in", "expert_in", "hidden_bias"]
    found = match({**PATTERNS, "*.router_bias": "router_bias"}, optional=["moe.router_bias", "attn.mask"])
    assert found["moe.router_bias"] == "router_bias"
    assert "attn.mask" not in found


@given(st.permutations(NAMES), st.sets(st.sampled_from(NAMES), min_size=1))
def test_all_unmatched_parameters_are_named_and_only_they(names: list[str], missing: set[str]) -> None:
    kept = {name: "norm" for name in names if name not in missing}
    with pytest.raises(HpxferError) as error:
        match(kept, names)
    spelled = str(error.value).partition("got none for ")[2].partition(";")[0].split(", ")
    assert spelled == [name for name in names if name in missing]


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({**PATTERNS, "a.*": "norm", "b": "norm"}, [r"got no match for 'a\.\*', 'b'; correct or remove"]),
        (
            {**PATTERNS, "blocks.0.up.bias": "norm"},
            ["earlier patterns match all names of 'blocks.0.up.bias'; move these"],
        ),
        (
            {**PATTERNS, "emb.*": "embeding", "*.bias": "shared_in"},
            ["'emb.\\*': unknown role 'embeding'; did you mean 'embedding'", r"'\*.bias': shared_in: no such layer$"],
        ),
        ({"emb.*": "embeding", "nothing": "norm"}, ["unknown role", "got none for", "got no match"]),
    ],
)
def test_every_fault_has_its_line(roles: Any, said: list[str]) -> None:
    with pytest.raises(HpxferError) as error:
        match(roles)
    lines = str(error.value).splitlines()
    assert len(lines) == len(said)
    assert all(re.search(pattern, line) for pattern, line in zip(said, lines, strict=True))


def test_what_are_no_pairs_is_refused() -> None:
    for roles in (None, "norm", [3], [("a", "norm", "b")], [("a", 1)], {"a": None}):
        refused("must be a mapping of name pattern to role", match, roles)


@given(st.lists(st.tuples(st.sampled_from(("*", "emb*", "*up*", "*.bias")), st.sampled_from(list(ROLES)))))
def test_a_match_accounts_for_every_name_and_every_pattern(pairs: list[tuple[str, str]]) -> None:
    try:
        found = match_roles(NAMES, [], pairs, {})
    except HpxferError:
        return
    assert list(found) == NAMES
    assert set(found.values()) == {role for _, role in pairs}


KINDS = ("gpt2", "llama", "qwen3", "mixtral", "qwen3_moe", "olmoe", "glm4_moe")
QKV = "attn_q+attn_k+attn_v"
ATTENTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_out"}


def role_of(model: nn.Module) -> dict[str, str]:
    """Return name -> proposed role; every parameter must have one, and every pattern be of use."""
    proposed = hpxfer.roles(model)
    assert proposed.unmatched == ()
    pairs = list(proposed)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    found = {name: next(role for pattern, role in pairs if fnmatchcase(name, pattern)) for name in names}
    assert {role for _, role in pairs} - {"router_bias"} == set(found.values())
    return found


def expected(name: str, kind: str) -> str:
    """Return the role by what the architectures say, independently of the tables."""
    *path, last = name.split(".")
    module = path[-1] if path else ""
    if last == "bias":
        return "hidden_bias"
    if module in ATTENTION:
        return ATTENTION[module]
    if kind == "gpt2":
        if module == "c_proj":
            return "attn_out" if path[-2] == "attn" else "dense_out"
        known = {"c_attn": QKV, "c_fc": "dense_in", "ln_1": "norm", "ln_2": "norm", "wpe": "position"}
        return (known | {"wte": "embedding", "ln_f": "final_norm", "lm_head": "readout"})[module]
    ffn = {"gate_up_proj": "in+expert_gate", "down_proj": "out", "gate_proj": "gate", "up_proj": "in"}
    ffn |= {"w1": "gate", "w2": "out", "w3": "in"}
    part = last if last != "weight" else module
    if "experts" in path:
        return "expert_" + ffn[part]
    if part in ffn:
        return ("shared_" if "shared_experts" in path else "dense_") + ffn[part]
    outside = {"gate": "router", "embed_tokens": "embedding", "norm": "final_norm", "lm_head": "readout"}
    return outside.get(module, "norm")


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_of_a_known_model_has_its_role_and_by_names_alone_too(kind: str) -> None:
    model = make(kind)
    known = role_of(model)
    assert known == {name: expected(name, kind) for name in known}
    assert f"as a {kind} of transformers" in str(hpxfer.roles(model))
    if kind in ("mixtral", "qwen3_moe", "olmoe"):  # a module an expert, as in transformers 4
        found = role_of(with_layout_of_4(make(kind)))
        assert found == {name: expected(name, kind) for name in found}
        assert sum(role == "expert_gate" for role in found.values()) in (4, 8)
    del model.config
    assert role_of(model) == known
    assert "by names alone: check them" in str(hpxfer.roles(model))


@pytest.mark.parametrize("swiglu", [False, True])
def test_a_model_of_ones_own_is_read_by_its_names(swiglu: bool) -> None:
    shape = Shape(**{**BASE, "num_shared": 1, "shared_width": 16})
    multipliers = dict.fromkeys(("attn_logits", "attn_out", "expert_out", "shared_out", "dense_out", "readout"), 1.0)
    model = OwnGPT(shape, 16, 8, multipliers, biases=True, swiglu=swiglu)
    found = role_of(model)
    for name, role in found.items():
        if not swiglu and "shared" not in name:
            assert role == next(given for pattern, given in ROLES_WITH_BIASES.items() if fnmatchcase(name, pattern))
    assert found["blocks.1.moe.shared.0.down.weight"] == "shared_out"
    if swiglu:
        assert found["blocks.0.moe.experts.1.gate.weight"] == "expert_gate"
        assert found["blocks.0.moe.router.weight"] == "router"
    assert ("blocks.*.moe.router_bias", "router_bias") in list(hpxfer.roles(model))


def test_numbered_matrices_and_gates_are_read_by_what_is_beside_them() -> None:
    class Experts(nn.Module):
        def __init__(self, names: tuple[str, ...]) -> None:
            super().__init__()
            self.experts = nn.ModuleList(
                nn.ModuleDict({part: nn.Linear(4, 4, bias=False) for part in names}) for _ in "ab"
            )

    two = role_of(Experts(("w1", "w2")))
    three = role_of(Experts(("w1", "w2", "w3")))
    assert [two[f"experts.0.w{n}.weight"] for n in (1, 2)] == ["expert_in", "expert_out"]
    assert [three[f"experts.1.w{n}.weight"] for n in (1, 2, 3)] == ["expert_gate", "expert_out", "expert_in"]

    class Block(nn.Module):
        def __init__(self, has_experts: bool) -> None:
            super().__init__()
            self.gate = nn.Linear(4, 4, bias=has_experts)
            self.up = nn.Linear(4, 4, bias=False)
            if has_experts:
                self.experts = nn.ModuleList([nn.ModuleDict({"up": nn.Linear(4, 4, bias=False)})])

    def find(has_experts: bool) -> dict[str, str]:
        return dict(hpxfer.roles(nn.ModuleDict({"mlp": Block(has_experts)})))

    assert find(False)["mlp.gate.weight"] == "dense_gate"
    assert find(True)["mlp.gate.weight"] == "router"
    # A router's own bias has no role: whether an optimizer or a balancing rule moves it, no name says.
    assert hpxfer.roles(nn.ModuleDict({"mlp": Block(True)})).unmatched == ("mlp.gate.bias",)


def test_a_proposal_is_printed_and_what_has_no_role_is_said_refused_and_given_one() -> None:
    model = make("mixtral")
    model.add_module("score", nn.Linear(32, 3, bias=False))
    proposed, shape = hpxfer.roles(model), hpxfer.shape_of(model)
    assert proposed.unmatched == ("score.weight",)
    assert str(proposed).splitlines()[-1].strip() == "score.weight"
    refused(r"got none for score\.weight", by_hand(shape).param_groups, model, proposed, shape)
    extra = hpxfer.roles(model, extra={"score.weight": "readout"})
    assert next(iter(extra)) == ("score.weight", "readout")
    assert extra.unmatched == ()
    assert list(extra) == list(extra)
    by_hand(shape).param_groups(model, extra, shape)
    line = next(line for line in str(hpxfer.roles(make("mixtral"))).splitlines() if "gate_up_proj" in line)
    assert line.split() == [
        *("model.layers.*.mlp.experts.gate_up_proj", "expert_in+expert_gate", "2"),
        *("model.layers.0.mlp.experts.gate_up_proj", "4x96x32"),
    ]


def test_of_a_shared_tensor_the_first_name_must_have_a_role() -> None:
    """As a recipe will ask of it: the name of the readout alone would give the embedding the readout's numbers."""
    model = make("gpt2")
    del model.config
    model.transformer.words = model.transformer.wte
    del model.transformer.wte
    model.lm_head.weight = model.transformer.words.weight
    first = next(name for name, _ in model.named_parameters())
    assert hpxfer.roles(model).unmatched == ("transformer.words.weight",)
    assert first != "transformer.words.weight", "it need not be the first of all"
    shape = {"width": 32, "depth": 2, "head_dim": 8, "dense_width": 128}
    with pytest.raises(HpxferError, match=r"got none for transformer\.words\.weight"):
        by_hand(shape, "completep").param_groups(model, hpxfer.roles(model), shape)
    roles = hpxfer.roles(model, extra={"*words.weight": "embedding"})
    assert roles.unmatched == ()
    by_hand(shape, "completep").param_groups(model, roles, shape)


EXPERTS = {"num_experts": 4, "num_active": 2, "kv_heads": 2}
SHAPES: dict[str, dict[str, int]] = {
    "gpt2": {"dense_width": 128},
    "llama": {"dense_width": 48, "kv_heads": 2},
    "qwen3": {"dense_width": 48, "num_heads": 8, "kv_heads": 2},
    "mixtral": {**EXPERTS, "expert_width": 48},
    "olmoe": {**EXPERTS, "expert_width": 48},
    "qwen3_moe": {**EXPERTS, "expert_width": 16, "dense_width": 48},
    "glm4_moe": {**EXPERTS, "expert_width": 16, "dense_width": 48, "num_shared": 1, "shared_width": 16},
}


@pytest.mark.parametrize(("kind", "dims"), SHAPES.items())
def test_the_shape_of_a_known_model(kind: str, dims: dict[str, int]) -> None:
    model = make(kind)
    shape = Shape(width=32, depth=2, head_dim=8, **dims)
    assert hpxfer.shape_of(model) == hpxfer.shape_of(model.config) == shape
    assert hpxfer.shape_of(model, batch_tokens=64, steps=9).tokens == 576


def test_the_shape_of_other_models() -> None:
    assert hpxfer.shape_of(make("qwen3_moe", mlp_only_layers=[])).dense_width == 0
    dense = hpxfer.shape_of(make("qwen3_moe", mlp_only_layers=[0, 1]))
    assert (dense.num_experts, dense.dense_width) == (0, 48)
    refused(r"shape_of: must be a model whose config says what it is, .*, got Linear", hpxfer.shape_of, nn.Linear(3, 3))
