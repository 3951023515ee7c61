"""Golden tests: what other trainers publish of their own rules, against the table of ours that claims the same rule.

The numbers on the right are theirs, for m = 4 times the base's width at one depth, from a base LR of 1, an eps of 1, a
weight decay of 1 and a std of 1.
"""

from __future__ import annotations

import pytest

from hpxfer.recipe.forward_sites import attention_scale
from hpxfer.scaling.evaluate import Multipliers, parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.resolve import BaseInit, resolve
from hpxfer.scaling.shape import Shape

BASE = Shape(width=64, depth=2, head_dim=16, dense_width=256)
WIDE = Shape(width=256, depth=2, head_dim=16, dense_width=1024)
DEEP = Shape(width=256, depth=4, head_dim=16, dense_width=1024)
HIDDEN = ("attn_q", "attn_k", "attn_v", "attn_out", "dense_in", "dense_gate", "dense_out")
VECTORS = ("position", "norm", "final_norm", "hidden_bias")
M = 4.0
# Megatron-LM's --use-mup, and the tables with the conventions that reproduce it.
MEGATRON = {"eps": "hidden", "weight_decay": "independent", "readout": "forward"}


def ours(name: str, target: Shape = WIDE, **conventions: str | float) -> dict[str, Multipliers]:
    init = BaseInit(matrices="constant", matrix_std=1.0, embedding_std=1.0, position_std=1.0)
    hps = HPs(lr=1.0, eps=1.0, weight_decay=1.0)
    return resolve(parameterization(name, conventions), BASE, target, "adam", hps, init)


@pytest.mark.parametrize("name", ["mup", "completep"])
def test_megatron(name: str) -> None:
    """NVIDIA/Megatron-LM, megatron/core/optimizer/__init__.py at 0044db1: `get_mup_config_overrides`.

    Adam's LR and eps of hidden matrices are divided by the width multiplier, those of vectors and embeddings stay. The
    unit tests of its muP (class TestMuPLRScaling) keep LR and eps of an output layer that is tagged as an embedding,
    and TestMuPInitMethods divides the std of hidden matrices by its square root. Its TransformerConfig sets
    mup_output_mult = 1 / mup_width_mult and leaves mup_embedding_mult at 1; mup_attn_scale_power is 1: 1/d_head.
    """
    got = ours(name, **MEGATRON)
    for role in HIDDEN:
        assert (got[role].lr, got[role].eps, got[role].init_std) == (1 / M, 1 / M, 1 / M**0.5), role
        assert (got[role].weight_decay, got[role].forward) == (1, 1), role
    for role in (*VECTORS, "embedding", "readout"):
        assert (got[role].lr, got[role].eps) == (1, 1), role
    assert got["embedding"].init_std == got["embedding"].forward == got["readout"].init_std == 1
    assert got["readout"].forward == 1 / M
    assert attention_scale("1/d_head", 64) == 1 / 64  # its test: kv_channels 64 give a softmax_scale of 1/64


@pytest.mark.parametrize("name", ["mup", "completep"])
def test_megatron_s_rule_needs_the_convention(name: str) -> None:
    """The twin: without `eps: hidden` the eps of vectors, embedding and readout is divided as well."""
    got = ours(name, **{**MEGATRON, "eps": "per_role"})
    assert {got[role].eps for role in (*VECTORS, "embedding", "readout")} == {1 / M}


def test_nanogpt_mup() -> None:
    """EleutherAI/nanoGPT-mup, README.md at 3904404, the code block of its branch completep and the table of master.

    One eps for embedding, unembedding and the last norm, eps / m, and one for what is inside the blocks, eps / m / m_L.
    Decay of hidden weights is divided by their LR factor. m = 4 and m_L = 2, with alpha = 1.
    """
    got, depth = ours("completep", DEEP), 2.0
    for role in HIDDEN:
        assert (got[role].lr, got[role].eps) == (1 / M, 1 / M / depth), role
        assert (got[role].weight_decay, got[role].init_std ** 2) == (M, 1 / M), role
    for role in ("norm", "hidden_bias"):
        assert (got[role].lr, got[role].eps, got[role].weight_decay) == (1, 1 / M / depth, 0), role
    for role in ("embedding", "readout", "final_norm"):
        assert (got[role].lr, got[role].eps) == (1, 1 / M), role
    assert got["readout"].forward == 1 / M
    assert got["attn_out"].forward == got["dense_out"].forward == 1 / depth  # residual_scaling
    assert (got["embedding"].weight_decay, got["final_norm"].weight_decay) == (1, 0)


def test_nanogpt_mup_at_half_alpha() -> None:
    """The same README: lr_scale of what is inside the blocks is depth_lr_scaling = m_L^(alpha - 1)."""
    got, depth, alpha = ours("completep", DEEP, depth_alpha=0.5), 2.0, 0.5
    assert got["norm"].lr == pytest.approx(depth ** (alpha - 1))
    assert got["dense_in"].lr == pytest.approx(depth ** (alpha - 1) / M)
    assert got["dense_in"].eps == pytest.approx(1 / M * depth**-alpha)
    assert got["final_norm"].lr == got["embedding"].lr == 1


def test_transformers_45848() -> None:
    """huggingface/transformers, pull request 45848, its description: AdamW by `mup.MuAdam`.

    Matrix-like LR / m and vector-like LR, Linear weights divided by sqrt(m) after the model's own init, a MuReadout in
    place of the output embeddings, and 1/d_head. Its groups multiply the decay of matrices by m, and have one eps.
    """
    got = ours("mup", eps="global")
    for role in HIDDEN:
        assert (got[role].lr, got[role].weight_decay) == (1 / M, M), role
        assert (got[role].init_std, got[role].eps) == (1 / M**0.5, 1), role
    for role in (*VECTORS, "embedding", "readout"):
        assert (got[role].lr, got[role].eps) == (1, 1), role
    assert got["readout"].forward == 1 / M


def test_the_control_has_none_of_these_rules() -> None:
    got = ours("sp")
    assert {got[role].lr for role in HIDDEN} == {got[role].eps for role in HIDDEN} == {1}
    assert got["readout"].forward == 1
