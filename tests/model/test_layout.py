"""The tensors of the built-in GPT."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from tiny_trials import BASE, JOINT, SETTING

from hpxfer.model.layout import tensors
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.shape import Shape
from hpxfer.trial import Setting

SETTINGS = [
    replace(SETTING, tied_embeddings=tied, norm_gains=gains, biases=biases)
    for tied, gains, biases in itertools.product((False, True), repeat=3)
]


def names(setting: Setting) -> set[str]:
    return {tensor.name for tensor in tensors(BASE, setting)}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_tensor_has_one_name_a_role_and_a_row_in_the_moe_tables(setting: Setting) -> None:
    found = tensors(JOINT, setting)
    assert len({tensor.name for tensor in found}) == len(found)
    for name in ("sp", "completep-moe"):
        rows = {row.role for row in parameterization(name).rows("adam")}
        assert {tensor.role for tensor in found} <= rows <= set(ROLES)


@pytest.mark.parametrize("shape", [BASE, JOINT])
def test_matrices_read_from_the_dimension_that_their_role_names(shape: Shape) -> None:
    for tensor in tensors(shape, SETTINGS[-1]):
        if ROLES[tensor.role] == "matrix":
            assert tensor.size[-2] == getattr(shape, fan_in_dim(tensor.role)), tensor.name


def test_a_block_tensor_has_a_copy_a_layer_and_the_others_one() -> None:
    outside = {tensor.name for tensor in tensors(JOINT, SETTINGS[3]) if tensor.layers == 1}
    assert outside == {"embedding", "position", "final_norm", "final_norm_bias", "readout"}
    assert {tensor.layers for tensor in tensors(JOINT, SETTINGS[3])} == {1, JOINT.depth}


def test_options_add_and_take_tensors() -> None:
    plain = names(SETTING)
    assert plain - names(replace(SETTING, tied_embeddings=True)) == {"readout"}
    assert names(replace(SETTING, norm_gains=True)) - plain == {"attn_norm", "moe_norm", "final_norm"}
    biased = names(replace(SETTING, biases=True)) - plain
    linear = {f"{name}_bias" for name in ("attn_q", "attn_k", "attn_v", "attn_out", "expert_in", "expert_out")}
    assert biased == linear | {"attn_norm_bias", "moe_norm_bias", "final_norm_bias"}


def test_sizes() -> None:
    sizes = {tensor.name: tensor.size for tensor in tensors(JOINT, SETTING)}
    assert sizes["embedding"] == (SETTING.vocab_size, 32)
    assert sizes["position"] == (SETTING.context, 32)
    assert sizes["router"] == (32, 8)
    assert sizes["expert_in"] == (8, 32, 64)
    assert sizes["expert_out"] == (8, 64, 32)
    assert sizes["readout"] == (32, SETTING.vocab_size)
