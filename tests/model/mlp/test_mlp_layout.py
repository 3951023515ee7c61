"""The memory that a plan counts for the MLP mixture."""

from __future__ import annotations

import pytest
from mlp_cases import setting

from hpxfer.model.mlp.layout import memory
from hpxfer.scaling.shape import Shape


@pytest.mark.parametrize("depth", [1, 3])
def test_every_block_keeps_its_experts(depth: int) -> None:
    """A block keeps its experts' features before and after the activation, and times the gates: float32, [B, E*H]."""
    shape = Shape(width=16, depth=depth, num_experts=4, num_active=4, expert_width=8)
    kept = memory(shape, setting(batch=50), False).parts["experts"]
    assert kept == depth * 3 * 4 * 50 * 4 * 8
