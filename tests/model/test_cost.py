"""Parameters and FLOPs against formulas written out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import shapes
from tiny_trials import BASE, JOINT, SETTING

from hpxfer.model.cost import count_params, flops_per_token, train_flops
from hpxfer.model.flat import FlatLayout
from hpxfer.model.gpt.layout import gpt_parameters
from hpxfer.scaling.shape import Shape

# The base model of arXiv 2601.20205 with GPT-2's padded vocabulary.
PAPER_BASE = Shape(width=512, depth=8, num_experts=4, num_active=1, expert_width=512, head_dim=64)
PAPER_SETTING = replace(SETTING, vocab_size=50304, context=1024, tied_embeddings=True)


@given(shapes(present=False), st.booleans())
def test_total_is_the_formula(shape: Shape, tied: bool) -> None:
    setting = replace(SETTING, tied_embeddings=tied)
    dim, depth, num_experts = shape.width, shape.depth, shape.num_experts
    expected = dim * (setting.context + setting.vocab_size)
    expected += depth * dim * num_experts  # routers
    expected += depth * (4 * dim**2 + 2 * num_experts * dim * shape.expert_width)  # n^2 L (4 + 2 n_exp alpha)
    expected += 0 if tied else dim * setting.vocab_size
    assert count_params(shape, setting).total == expected


MIXED = replace(JOINT, depth=5, num_shared=2, shared_width=24, dense_width=40)
DENSE = Shape(width=32, depth=3, head_dim=8, dense_width=48)


@pytest.mark.parametrize("ffn", ["gelu", "swiglu"])
@pytest.mark.parametrize(
    ("shape", "gains_and_biases", "tied"),
    [(BASE, False, False), (JOINT, True, True), (MIXED, True, False), (DENSE, True, True)],
)
def test_total_is_what_is_stored(shape: Shape, gains_and_biases: bool, tied: bool, ffn: str) -> None:
    extra = {"norm_gains": gains_and_biases, "biases": gains_and_biases, "moe_every": 2 if shape.dense_width else 1}
    setting = replace(SETTING, tied_embeddings=tied, ffn=ffn, **extra)
    layout = FlatLayout(parameters=gpt_parameters(shape, setting), num_trials=3)
    assert 3 * count_params(shape, setting).total == layout.numel


def test_active_leaves_out_the_experts_that_a_token_does_not_meet() -> None:
    setting = replace(SETTING, biases=True)
    count = count_params(JOINT, setting)
    one_expert = JOINT.depth * (2 * 32 * 64 + 64 + 32)
    assert count.total - count.active == (JOINT.num_experts - JOINT.num_active) * one_expert
    dense = replace(JOINT, num_active=JOINT.num_experts)
    assert count_params(dense, setting).active == count_params(dense, setting).total


@pytest.mark.parametrize(("ffn", "matrices"), [("gelu", 2), ("swiglu", 3)])
def test_a_token_meets_the_ffn_of_its_blocks(ffn: str, matrices: int) -> None:
    """Two blocks of five have a router, active and shared experts. The other three have a dense FFN."""
    setting = replace(SETTING, moe_every=2, ffn=ffn)
    moe = 32 * MIXED.num_experts + matrices * 32 * MIXED.active_width
    active = 2 * moe + 3 * matrices * 32 * 40 + 5 * 4 * 32**2 + 32 * setting.vocab_size
    attention = 12 * 5 * 32 * setting.context
    assert flops_per_token(MIXED, setting) == 6 * active + attention
    assert count_params(MIXED, setting).active == active + 32 * (setting.vocab_size + setting.context)
    idle = 2 * matrices * 32 * 64 * (MIXED.num_experts - MIXED.num_active)
    assert count_params(MIXED, setting).total == count_params(MIXED, setting).active + idle


def test_all_of_a_dense_model_is_active() -> None:
    count = count_params(DENSE, SETTING)
    assert count.active == count.total == 32 * (2 * 128 + 16) + 3 * (4 * 32**2 + 2 * 32 * 48)


@pytest.mark.parametrize("tied", [False, True])
def test_flops_of_the_papers_base(tied: bool) -> None:
    """There are 38M active matmul parameters, of which the head has 26M, and attention."""
    setting = replace(PAPER_SETTING, tied_embeddings=tied)
    attention = 12 * 8 * 512 * 1024
    matmul = (flops_per_token(PAPER_BASE, setting) - attention) / 6
    assert matmul == 8 * (4 * 512**2 + 2 * 512**2 + 512 * 4) + 512 * 50304
    assert matmul == 38_354_944


def test_flops_ignore_what_is_no_matrix_product() -> None:
    plain = flops_per_token(JOINT, SETTING)
    assert flops_per_token(JOINT, replace(SETTING, norm_gains=True, biases=True)) == plain
    assert flops_per_token(JOINT, replace(SETTING, tied_embeddings=True)) == plain
    more_experts = replace(JOINT, num_experts=2 * JOINT.num_experts)
    assert flops_per_token(more_experts, SETTING) - plain == 6 * JOINT.depth * JOINT.width * JOINT.num_experts  # router


def test_training_flops_count_every_token() -> None:
    assert train_flops(BASE, SETTING) == flops_per_token(BASE, SETTING) * 6 * 64


@pytest.mark.parametrize(("moe_every", "dense_first"), [(1, 0), (1, 3), (2, 0), (3, 1)])
def test_the_count_of_a_deep_model_grows_by_equal_blocks(moe_every: int, dense_first: int) -> None:
    setting = replace(SETTING, moe_every=moe_every, dense_first=dense_first)
    shape, deep = (replace(JOINT, depth=depth, dense_width=16) for depth in (30, 30_000))
    counted, few = count_params(deep, setting), count_params(shape, setting)
    blocks = 30_000 - 30
    each = (count_params(replace(shape, depth=60), setting).total - few.total) / 30
    assert counted.total == few.total + blocks * each
