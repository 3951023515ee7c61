"""Which blocks have experts, and which roles a model has: the words of the layout, before there is a trial."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from made_results import DATA
from strategies import sweeps

from hpxfer.model.families import FAMILIES
from hpxfer.model.gpt.layout import gpt_roles
from hpxfer.scaling.shape import Shape
from hpxfer.spec import SweepSpec
from hpxfer.spec.blocks import dense_blocks, has_dense, model_roles, moe_blocks
from hpxfer.trial import Expansion

MOE = Shape(width=32, depth=5, num_experts=4, num_active=1, expert_width=32, head_dim=16)
DENSE = Shape(width=32, depth=5, head_dim=16, dense_width=64)


@dataclass(frozen=True)
class Options:
    moe_every: int = 1
    dense_first: int = 0
    ffn: str = "gelu"
    norm_gains: bool = False
    biases: bool = False
    qkv_biases: bool = False
    positions: str = "learned"
    learned_router_bias: bool = False


@given(st.integers(1, 5), st.integers(0, 7))
def test_every_so_many_th_block_above_the_first_ones(moe_every: int, dense_first: int) -> None:
    expected = tuple(i for i in range(5) if i >= dense_first and (i - dense_first + 1) % moe_every == 0)
    options = Options(moe_every, dense_first)
    assert tuple(moe_blocks(MOE, options)) == expected
    assert tuple(dense_blocks(MOE, options)) == tuple(i for i in range(5) if i not in expected)
    assert has_dense(MOE, options) is (len(expected) < 5)
    assert tuple(moe_blocks(DENSE, options)) == ()
    assert tuple(dense_blocks(DENSE, options)) == (0, 1, 2, 3, 4)
    assert has_dense(DENSE, options)


def test_roles_follow_the_shape_and_the_options() -> None:
    always = {"embedding", "position", "attn_q", "attn_k", "attn_v", "attn_out", "readout"}
    assert set(gpt_roles(DENSE, Options())) == always | {"dense_in", "dense_out"}
    routed = always | {"router", "router_bias", "expert_in", "expert_out"}
    assert set(gpt_roles(MOE, Options())) == routed
    assert set(gpt_roles(MOE, Options(biases=True, norm_gains=True))) == routed | {"hidden_bias", "norm", "final_norm"}
    mixed = Shape(**{**MOE.dims(), "num_shared": 1, "shared_width": 8, "dense_width": 64})
    gated = {f"{branch}_{part}" for branch in ("expert", "shared", "dense") for part in ("in", "gate", "out")}
    assert set(gpt_roles(mixed, Options(moe_every=2, ffn="swiglu"))) == routed | gated


@given(sweeps())
def test_the_built_in_model_has_these_roles(spec: SweepSpec) -> None:
    expansion = Expansion(spec, DATA)
    for shape in expansion.shapes:
        setting = expansion.setting_at(shape)
        assert moe_blocks(shape, setting) == moe_blocks(shape, spec.model)
        # The optimizer does not train the balancing bias, which is a buffer; a tied readout is the embedding.
        roles = set(model_roles(shape, spec.model)) - {"router_bias"}
        assert {param.role for param in FAMILIES.get(setting.family).parameters(shape, setting)} == roles - (
            {"readout"} if spec.model.tied_embeddings else set()
        )
