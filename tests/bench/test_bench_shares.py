"""Shares of a step: each operator in its part, and all parts together the step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hpxfer.bench.shares import PARTS, part_of, shares_text, step_shares


@pytest.mark.parametrize(
    ("chain", "part"),
    [
        (("aten::bmm", "BmmBackward0"), "products"),
        (("aten::_grouped_mm",), "products"),
        (("aten::mm", "aten::_grouped_mm"), "products"),
        (("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::scaled_dot_product_attention"), "attention"),
        (("aten::bmm", "aten::scaled_dot_product_attention"), "attention"),
        (("aten::native_layer_norm", "aten::layer_norm"), "elementwise"),
        (("aten::gelu_backward", "GeluBackward0"), "elementwise"),
        (("aten::_log_softmax", "aten::cross_entropy_loss"), "loss"),
        (("aten::exp", "_Head"), "loss"),
        (("aten::mul_", "_HeadBackward"), "loss"),
        (("aten::bmm", "_HeadBackward"), "products"),
        (("aten::bmm", "_ShortAttentionBackward"), "attention"),
        (("aten::index_select", "_Experts"), "routing"),
        (("aten::sort",), "routing"),
        (("aten::embedding_dense_backward",), "routing"),
        (("aten::mul_", "hpxfer.bench: update", "hpxfer.bench: step"), "optimizer"),
        (("hpxfer.bench: update", "hpxfer.bench: step"), "optimizer"),
        (("aten::select",), "rest"),
        (("aten::item",), "rest"),
        (("aten::split_with_sizes", "_Experts"), "rest"),
        (("aten::t",), "rest"),
        (("hpxfer.bench: step",), "rest"),
        (("GeluBackward0",), "rest"),
    ],
)
def test_the_part_of_an_operator(chain: tuple[str, ...], part: str) -> None:
    assert part_of(chain) == part


def test_the_shares_of_a_step_are_a_whole() -> None:
    x, w = torch.randn(256, 256), torch.randn(256, 256, requires_grad=True)

    def forward_backward() -> None:
        q = (x @ w).view(4, 8, 64, 32)
        heads = F.scaled_dot_product_attention(q, q, q)
        rows = F.gelu(heads).view(256, 256).index_select(0, torch.arange(255, -1, -1))
        F.cross_entropy(rows, torch.zeros(256, dtype=torch.long)).backward()

    shares = step_shares(forward_backward, lambda: w.detach().mul_(0.5), 2)
    assert set(shares) == set(PARTS)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(share > 0 for share in shares.values())


def test_the_text_starts_with_the_largest() -> None:
    assert shares_text({"rest": 0.25, "products": 0.75}) == "profile: products 75%, rest 25%"
