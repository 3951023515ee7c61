"""The plan says how equal active parameters are."""

from __future__ import annotations

import pytest
from made_results import DATA
from sweep_text import edited

from hpxfer.model.cost import active_without_embeddings, count_params
from hpxfer.plan.active import active_lines
from hpxfer.plan.make import make_plan
from hpxfer.plan.text import plan_text
from hpxfer.spec import parse_sweep
from hpxfer.trial import Expansion

TO_DENSE = (
    "  width: [32, 64]",
    "  width: [32, 64]\n  dense: {shapes: [{num_experts: 0}, {num_experts: 0, dense_ratio: 4}], "
    "allow_kappa_change: true}",
)


def test_moe_shapes_are_given_relative_to_the_nearest_dense_one() -> None:
    expansion = Expansion(parse_sweep(edited(TO_DENSE)), DATA)
    # attention 4 x 32^2, FFN 2 x 32 x H, two norms of 2 x 32, in 2 blocks; the final norm; routers 2 x 32 x 4
    dense = 2 * (4 * 32**2 + 2 * 32 * 32)
    small, large = active_lines(expansion)
    count = active_without_embeddings(expansion.shapes[-2], expansion.setting_at(expansion.shapes[-2]))
    assert dense <= count < 1.05 * dense
    assert small == (
        f"active parameters without embeddings, relative to the dense w32 d2 D32 ({count:,}): "
        f"w32 d2 E4A1 h32 {(count + 2 * 32 * 4) / count:.3g}"
    )
    assert large.startswith("active parameters without embeddings, relative to the dense w32 d2 D128 (")
    plan = make_plan(expansion, ())
    assert plan.active == (small, large)
    assert small in plan_text(plan)
    assert plan.to_dict()["active"] == [small, large]


def test_without_a_dense_shape_nothing_is_said() -> None:
    assert active_lines(Expansion(parse_sweep(edited()), DATA)) == ()


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_and_an_untied_readout_are_left_out(tied: bool) -> None:
    spec = parse_sweep(edited(("  context: 64", f"  context: 64\n  tied_embeddings: {str(tied).lower()}")))
    expansion = Expansion(spec, DATA)
    shape, setting = spec.base_shape, expansion.setting
    tables = 32 * (DATA.vocab_size * (1 if tied else 2) + 64)
    assert count_params(shape, setting).active - active_without_embeddings(shape, setting) == tables
