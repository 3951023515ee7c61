"""The tensors of the built-in GPT, their flat storage, and what they cost: parameters and FLOPs by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import shapes
from tiny_trials import BASE, JOINT, SETTING

from hpxfer.model.cost import count_params, flops_per_token, train_flops
from hpxfer.model.flat import FlatLayout, gradients
from hpxfer.model.gpt.layout import gpt_parameters, gpt_roles
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.scaling.shape import Shape
from hpxfer.spec.blocks import moe_blocks
from hpxfer.trial import Setting

FULL = replace(SETTING, tied_embeddings=True, norm_gains=True, biases=True, ffn="swiglu", moe_every=2)
SETTINGS = [replace(SETTING, moe_every=2), replace(FULL, tied_embeddings=False), replace(FULL, ffn="gelu"), FULL]
MIXED = replace(JOINT, depth=5, num_shared=2, shared_width=24, dense_width=40)
DENSE = Shape(width=32, depth=3, head_dim=8, dense_width=48)
SHAPES = [BASE, JOINT, MIXED, DENSE]


def names(setting: Setting, shape: Shape = BASE) -> set[str]:
    return {tensor.name for tensor in gpt_parameters(shape, setting)}


@pytest.mark.parametrize("shape", SHAPES, ids=Shape.label)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_tensor_has_one_name_a_role_and_a_row_in_the_tables(setting: Setting, shape: Shape) -> None:
    shape = replace(shape, dense_width=40)  # moe_every leaves dense blocks
    found = gpt_parameters(shape, setting)
    assert len({tensor.name for tensor in found}) == len(found)
    assert all(tensor.numel for tensor in found)
    roles = {tensor.role for tensor in found}
    for name in ("sp", "complete-mue"):
        rows = {row.role for row in parameterization(name).rows("adam")}
        assert roles <= rows <= set(ROLES)
    # The roles that the checks of a sweep use. A tied table serves as readout; the router bias is not trained.
    assert roles | {"readout"} == set(gpt_roles(shape, setting)) - {"router_bias"}


@pytest.mark.parametrize("shape", SHAPES, ids=Shape.label)
def test_matrices_read_from_the_dimension_that_their_role_names(shape: Shape) -> None:
    for tensor in gpt_parameters(shape, replace(FULL, moe_every=1)):
        if ROLES[tensor.role] == "matrix":
            assert tensor.size[-2] == getattr(shape, fan_in_dim(tensor.role)), tensor.name


@pytest.mark.parametrize(
    ("every", "first", "expected"),
    [(1, 0, (0, 1, 2, 3, 4)), (2, 0, (1, 3)), (1, 2, (2, 3, 4)), (2, 1, (2, 4)), (3, 2, (4,)), (6, 0, ()), (1, 5, ())],
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
    assert {name for name, at in blocks.items() if not at} == {"embedding", "position", "final_norm", "final_norm_bias"}


def test_options_and_ffns_add_and_take_tensors() -> None:
    plain = names(SETTING)
    assert plain - names(replace(SETTING, tied_embeddings=True)) == {"readout"}
    assert names(replace(SETTING, norm_gains=True)) - plain == {"attn_norm", "ffn_norm", "final_norm"}
    biased = names(replace(SETTING, biases=True)) - plain
    linear = {f"{name}_bias" for name in ("attn_q", "attn_k", "attn_v", "attn_out", "expert_in", "expert_out")}
    assert biased == linear | {"attn_norm_bias", "ffn_norm_bias", "final_norm_bias"}
    plain, biased = replace(SETTING, moe_every=2), replace(SETTING, moe_every=2, biases=True)
    routed, shared, dense = ({f"{kind}_in", f"{kind}_out"} for kind in ("expert", "shared", "dense"))
    assert names(plain, MIXED) - names(plain, DENSE) == {"router"} | routed | shared
    assert names(plain, MIXED) - names(SETTING, MIXED) == dense
    gates = {"expert_gate", "shared_gate", "dense_gate"}
    assert names(replace(plain, ffn="swiglu"), MIXED) - names(plain, MIXED) == gates
    both = names(replace(biased, ffn="swiglu"), MIXED) - names(biased, MIXED)
    assert both == gates | {f"{name}_bias" for name in gates}


SMALL = replace(SETTING, norm_gains=True, biases=True)


def flat_layout(num_trials: int) -> FlatLayout:
    return FlatLayout(parameters=gpt_parameters(BASE, SMALL), num_trials=num_trials)


def test_views_cover_the_vector_once_and_in_order() -> None:
    layout = flat_layout(2)
    flat = torch.arange(float(layout.numel))
    views = layout.weights(flat)
    assert torch.equal(torch.cat([copy.flatten() for copies in views.values() for copy in copies]), flat)
    for tensor in layout.parameters:
        assert [copy.shape for copy in views[tensor.name]] == [(2, *tensor.size)] * tensor.layers


def test_gradients_are_contiguous_and_named_as_the_weights() -> None:
    flat = torch.ones(flat_layout(2).numel)
    leaves = flat_layout(2).leaves(flat)
    # A transposed use gives autograd gradients with other strides.
    turned = [copy.transpose(0, -1) for copies in leaves.values() for copy in copies]
    losses = torch.stack([sum(view[..., k].square().sum() for view in turned) for k in (0, 1)])
    found = gradients(losses, leaves, torch.tensor([1.0, 3.0]))
    for name, copies in leaves.items():
        for copy, grad in zip(copies, found[name], strict=True):
            assert grad.is_contiguous()
            assert torch.equal(grad, torch.stack([torch.full_like(copy[0], value) for value in (2.0, 6.0)]))


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


@pytest.mark.parametrize("setting", SETTINGS)
def test_total_is_what_is_stored(setting: Setting) -> None:
    for shape in SHAPES:
        given = setting if shape.dense_width else replace(setting, moe_every=1)
        layout = FlatLayout(parameters=gpt_parameters(shape, given), num_trials=3)
        assert 3 * count_params(shape, given).total == layout.numel


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


def test_all_of_a_dense_model_is_active_and_flops_ignore_what_is_no_matrix_product() -> None:
    count = count_params(DENSE, SETTING)
    assert count.active == count.total == 32 * (2 * 128 + 16) + 3 * (4 * 32**2 + 2 * 32 * 48)
    plain = flops_per_token(JOINT, SETTING)
    assert flops_per_token(JOINT, replace(SETTING, norm_gains=True, biases=True)) == plain
    assert flops_per_token(JOINT, replace(SETTING, tied_embeddings=True)) == plain
    more_experts = replace(JOINT, num_experts=2 * JOINT.num_experts)
    assert flops_per_token(more_experts, SETTING) - plain == 6 * JOINT.depth * JOINT.width * JOINT.num_experts  # router
    assert train_flops(BASE, SETTING) == flops_per_token(BASE, SETTING) * 6 * 64
    # There are 38M active matmul parameters, of which the head has 26M, and attention.
    attention = 12 * 8 * 512 * 1024
    matmul = (flops_per_token(PAPER_BASE, PAPER_SETTING) - attention) / 6
    assert matmul == 8 * (4 * 512**2 + 2 * 512**2 + 512 * 4) + 512 * 50304
    assert matmul == 38_354_944


@pytest.mark.parametrize(("moe_every", "dense_first"), [(1, 0), (1, 3), (2, 0), (3, 1)])
def test_the_count_of_a_deep_model_grows_by_equal_blocks(moe_every: int, dense_first: int) -> None:
    setting = replace(SETTING, moe_every=moe_every, dense_first=dense_first)
    shape, deep = (replace(JOINT, depth=depth, dense_width=16) for depth in (30, 30_000))
    counted, few = count_params(deep, setting), count_params(shape, setting)
    blocks = 30_000 - 30
    each = (count_params(replace(shape, depth=60), setting).total - few.total) / 30
    assert counted.total == few.total + blocks * each
