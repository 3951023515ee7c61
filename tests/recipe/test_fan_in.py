"""The fan-in of attention's output matrix, as it stands in modules of one's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hpxfer.recipe import Recipe
from hpxfer.recipe.fan_in import fan_in_of
from hpxfer.scaling.shape import Shape

TARGET = Shape(width=32, depth=2, head_dim=8, dense_width=64)


@pytest.mark.parametrize(
    ("size", "fan_in"),
    [
        ((64, 32), 64),  # x @ w
        ((32, 64), 64),
        ((8, 8, 32), 64),  # [heads, head_dim, width] of an einsum
        ((32, 8, 8), 64),
        ((4, 8, 32), 32),
        ((2, 64, 32), 64),  # [depth, heads x head_dim, width]: all layers in one tensor
        ((2, 32, 64), 64),
        ((2, 32, 32), 32),
        ((2, 8, 8, 32), 64),
        ((2, 8, 32), 16),  # two heads, not two layers of one head
        ((3, 64, 32), None),  # a stack of something else
    ],
)
def test_the_output_of_attention_shows_its_fan_in_in_every_layout(size: tuple[int, ...], fan_in: int | None) -> None:
    assert fan_in_of("attn_out", size, nn.Module(), "w_o", TARGET) == fan_in


def test_an_output_by_heads_starts_by_their_number() -> None:
    """Eight heads of 8 at a width of 32: by the width the output started sqrt(2) too large."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w_o = nn.Parameter(torch.zeros(8, 8, 32))

    made = Recipe.from_hps("completep", TARGET, {"lr": 1e-3})
    (row,) = made.explain(Attention(), {"w_o": "attn_out"}, TARGET).rows
    assert row.init == pytest.approx(64**-0.5)
