"""The tensors of the built-in GPT."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from tiny_trials import BASE, JOINT, SETTING

from hpxfer.model.gpt.layout import gpt_parameters, gpt_roles
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.scaling.shape import Shape
from hpxfer.spec.blocks import moe_blocks
from hpxfer.trial import Setting

SETTINGS = [
    replace(SETTING, tied_embeddings=tied, norm_gains=gains, biases=biases, ffn=ffn, moe_every=2)
    for tied, gains, biases in itertools.product((False, True), repeat=3)
    for ffn in ("gelu", "swiglu")
]
FULL = SETTINGS[-1]
MIXED = replace(JOINT, depth=5, num_shared=2, shared_width=24, dense_width=40)
DENSE = Shape(width=32, depth=3, head_dim=8, dense_width=48)
SHAPES = [BASE, JOINT, MIXED, DENSE]


def names(setting: Setting, shape: Shape = BASE) -> set[str]:
    return {tensor.name for tensor in gpt_parameters(shape, setting)}


@pytest.mark.parametrize("shape", SHAPES, ids=Shape.label)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_tensor_has_one_name_a_role_and_a_row_in_the_tables(setting: Setting, shape: Shape) -> None:
    found = gpt_parameters(replace(shape, dense_width=40), setting)  # moe_every leaves dense blocks
    assert len({tensor.name for tensor in found}) == len(found)
    assert all(tensor.numel for tensor in found)
    roles = {tensor.role for tensor in found}
    for name in ("sp", "complete-mue"):
        rows = {row.role for row in parameterization(name).rows("adam")}
        assert roles <= rows <= set(ROLES)
    # The roles that the checks of a sweep use. A tied table serves as readout; the router bias is not trained.
    assert roles | {"readout"} == set(gpt_roles(replace(shape, dense_width=40), setting)) - {"router_bias"}


@pytest.mark.parametrize("shape", SHAPES, ids=Shape.label)
def test_matrices_read_from_the_dimension_that_their_role_names(shape: Shape) -> None:
    for tensor in gpt_parameters(shape, replace(FULL, moe_every=1)):
        if ROLES[tensor.role] == "matrix":
            assert tensor.size[-2] == getattr(shape, fan_in_dim(tensor.role)), tensor.name


@pytest.mark.parametrize(
    ("every", "first", "expected"),
    [
        (1, 0, (0, 1, 2, 3, 4)),
        (2, 0, (1, 3)),
        (1, 2, (2, 3, 4)),
        (2, 1, (2, 4)),
        (3, 2, (4,)),
        (6, 0, ()),
        (1, 5, ()),
    ],
)
def test_moe_blocks(every: int, first: int, expected: tuple[int, ...]) -> None:
    setting = replace(FULL, moe_every=every, dense_first=first)
    assert tuple(moe_blocks(MIXED, setting)) == expected
    assert not moe_blocks(replace(DENSE, depth=5), setting)
    # Every block has one FFN. A MoE block has all parts of its layer.
    blocks = {tensor.name: tuple(tensor.blocks) for tensor in gpt_parameters(MIXED, setting)}
    dense = tuple(sorted(set(range(5)) - set(expected)))
    for name in ("router", "expert_in", "expert_gate", "expert_out_bias", "shared_in", "shared_out"):
        assert blocks.get(name, ()) == expected
    for name in ("dense_in", "dense_gate", "dense_out", "dense_out_bias"):
        assert blocks.get(name, ()) == dense
    assert blocks["ffn_norm"] == blocks["attn_q"] == tuple(range(5))


def test_a_block_tensor_has_a_copy_a_layer_and_the_others_one() -> None:
    setting = replace(FULL, tied_embeddings=False, moe_every=1)
    outside = {tensor.name for tensor in gpt_parameters(JOINT, setting) if not tensor.blocks}
    assert outside == {"embedding", "position", "final_norm", "final_norm_bias", "readout"}
    assert {tensor.layers for tensor in gpt_parameters(JOINT, setting)} == {1, JOINT.depth}


def test_options_add_and_take_tensors() -> None:
    plain = names(SETTING)
    assert plain - names(replace(SETTING, tied_embeddings=True)) == {"readout"}
    assert names(replace(SETTING, norm_gains=True)) - plain == {"attn_norm", "ffn_norm", "final_norm"}
    biased = names(replace(SETTING, biases=True)) - plain
    linear = {f"{name}_bias" for name in ("attn_q", "attn_k", "attn_v", "attn_out", "expert_in", "expert_out")}
    assert biased == linear | {"attn_norm_bias", "ffn_norm_bias", "final_norm_bias"}


def test_ffns_add_and_take_tensors() -> None:
    plain, biased = replace(SETTING, moe_every=2), replace(SETTING, moe_every=2, biases=True)
    routed, shared, dense = ({f"{kind}_in", f"{kind}_out"} for kind in ("expert", "shared", "dense"))
    assert names(plain, MIXED) - names(plain, DENSE) == {"router"} | routed | shared
    assert names(plain, MIXED) - names(SETTING, MIXED) == dense
    gates = {"expert_gate", "shared_gate", "dense_gate"}
    assert names(replace(plain, ffn="swiglu"), MIXED) - names(plain, MIXED) == gates
    both = names(replace(biased, ffn="swiglu"), MIXED) - names(biased, MIXED)
    assert both == gates | {f"{name}_bias" for name in gates}


def test_sizes() -> None:
    sizes = {tensor.name: tensor.size for tensor in gpt_parameters(JOINT, SETTING)}
    assert sizes["embedding"] == (SETTING.vocab_size, 32)
    assert sizes["position"] == (SETTING.context, 32)
    assert sizes["router"] == (32, 8)
    assert sizes["expert_in"] == (8, 32, 64)
    assert sizes["expert_out"] == (8, 64, 32)
    assert sizes["readout"] == (32, SETTING.vocab_size)
    full = {tensor.name: tensor.size for tensor in gpt_parameters(MIXED, FULL)}
    assert full["expert_gate"] == (8, 32, 64)
    assert full["shared_in"] == full["shared_gate"] == (2, 32, 24)
    assert full["shared_out"] == (2, 24, 32)
    assert full["shared_in_bias"] == (2, 24)
    assert full["shared_out_bias"] == (2, 32)
    assert full["dense_in"] == full["dense_gate"] == (32, 40)
    assert full["dense_out"] == (40, 32)
    assert full["dense_in_bias"] == (40,)
