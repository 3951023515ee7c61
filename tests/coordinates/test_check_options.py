"""The check under the options of the models that people train: they pass where the plain model does, and sp misses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpxfer.coordinates.checking import check
from hpxfer.scaling.coverage import coverage_warnings
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.spec import SweepSpec, parse_sweep

SWEEP = """\
name: options
model:
  family: gpt
  like: {like}
  init: fan_in
  embedding_std: 1.0
  gate: normalized_softmax
  attention_gate: true
  learned_router_bias: true
  shared_expert_gate: true
  balance: {{bias: none, aux: none}}
  context: 32
  base: {{width: 32, depth: 2, head_dim: 8, kv_heads: 2, num_experts: 4, num_active: 4, expert_ratio: 1, num_shared: 1,
    shared_ratio: 1}}
data: {{source: "builtin:stdlib"}}
training: {{batch_tokens: 256, steps: 100, validation_tokens: 256, eps: 1.0e-6}}
parameterizations: [{table}]
axes: {{width: [32]}}
hps: {{residual_scale: 0.5}}
grid: {{lr: [0.004]}}
"""
# Maps and vectors that only some options have. Each is measured.
OF_OPTIONS = {"attn_gate", "shared_router", "router_logit_bias"}


def sweep(table: str, like: str = "qwen3-moe") -> SweepSpec:
    return parse_sweep(SWEEP.format(table=table, like=like))


@pytest.mark.slow
@pytest.mark.parametrize("like", ["qwen3-moe"])
def test_the_options_pass_along_width(like: str) -> None:
    report = check(
        "complete-mue", sweep=sweep("complete-mue", like), axes=["width"], points=(32, 64, 128, 256), seeds=3
    )
    (axis,) = report.axes
    misses = [(judged.role, judged.quantity) for judged in axis.judged if judged.verdict == "miss"]
    assert misses == []
    assert {judged.role for judged in axis.judged} >= OF_OPTIONS
    gate = [judged for judged in axis.judged if judged.role == "attn_gate" and judged.quantity == "effective"]
    assert [judged.verdict for judged in gate] == ["ok"]


def test_under_sp_the_gate_of_attention_learns_too_much() -> None:
    report = check("sp", sweep=sweep("sp"), axes=["width"], points=(32, 64, 128, 256), seeds=2, steps=2)
    (axis,) = report.axes
    missed = {(judged.role, judged.quantity) for judged in axis.judged if judged.verdict == "miss"}
    assert {("attn_gate", "effective"), ("attn_gate", "change")} <= missed


def test_heads_that_do_not_follow_are_said() -> None:
    base = Shape(width=64, depth=2, head_dim=8, kv_heads=4, dense_width=64)
    table = parameterization("completep")
    follows = replace(base, width=128, kv_heads=8)
    assert not [text for text in coverage_warnings(table, base, follows) if "heads" in text]
    held = replace(base, width=128, kv_heads=4)
    assert any("a group goes from 2 heads to 4" in text for text in coverage_warnings(table, base, held))
    wider = replace(follows, num_heads=32, kv_heads=16)
    assert any("goes from 1 to 2 of the width" in text for text in coverage_warnings(table, base, wider))
