"""A legal sweep file, one key a line where an error should point at the line, and edits of it."""

from __future__ import annotations

SWEEP = """\
name: small
model:
  family: gpt
  base: {width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}
  context: 64
data:
  source: builtin:stdlib
training:
  batch_tokens: 512
  steps: 200
  betas: [0.9, 0.95]
  schedule: {decay: constant, warmup: 20}
  validation_tokens: 1024
parameterizations: [completep-moe, sp]
axes:
  width: [32, 64]
hps:
  router_bias_lr: 0.01
grid:
  lr: [0.01]
seeds: 2
"""


def edited(*edits: tuple[str, str]) -> str:
    """Return SWEEP with every (old, new) applied; each `old` must stand in it exactly once."""
    text = SWEEP
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
        text = text.replace(old, new)
    return text
