"""Legal sweep files, one key a line where an error should point at the line, and edits of them."""

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

# The same of a family that reads samples.
SAMPLES = """\
name: small
model:
  family: mlp
  base: {width: 32, depth: 1, num_experts: 4, num_active: 4, expert_width: 16}
data:
  source: builtin:shapes
training:
  batch_samples: 64
  steps: 200
  optimizer: sgd
  validation_samples: 1024
parameterizations: [mup-i, sp]
axes:
  width: {shapes: [{width: 64, expert_width: 32}]}
grid:
  lr: [0.01]
seeds: 2
"""


def edited(*edits: tuple[str, str], text: str = SWEEP) -> str:
    """Return a sweep with every (old, new) applied; each `old` must stand in it exactly once."""
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
        text = text.replace(old, new)
    return text
