"""A sweep that trains in a second or two, and edits of it."""

from __future__ import annotations

from pathlib import Path

from sweep_text import edited

TINY = """\
name: tiny
model:
  family: gpt
  base: {width: 16, depth: 1, num_experts: 2, num_active: 1, expert_ratio: 1, head_dim: 8}
  context: 16
data: {source: "builtin:stdlib"}
training: {batch_tokens: 64, steps: 6, validation_tokens: 128}
parameterizations: [completep-moe, sp]
axes:
  width: [16, 32]
grid:
  lr: {log2: [-8, -4]}
seeds: 2
resources: {executor: local, workers: 2}
"""


def write_tiny(folder: Path, *edits: tuple[str, str]) -> Path:
    """Write TINY with every (old, new) applied to `folder`/tiny.yaml and return the path."""
    path = folder / "tiny.yaml"
    path.write_text(edited(*edits, text=TINY), encoding="utf-8")
    return path
