"""A store with planted losses of a sweep of two HPs along two axes, for figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import planted_results
from planted_store import PlantedStore

from hpxfer.results import Results
from hpxfer.spec import parse_sweep
from hpxfer.trial import Trial

SWEEP = """\
name: planted
model:
  family: gpt
  base: {width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}
  context: 64
data: {source: "builtin:stdlib", digest: 0123456789abcdef}
training:
  batch_tokens: 512
  steps: 200
  schedule: {decay: constant, warmup: 20}
  validation_tokens: 4096
parameterizations: [completep-moe, sp]
axes:
  width: [32, 64, 128, 256]
  granularity: [1, 2, 4]
hps: {lr: {log2: -6}}
grid:
  lr: {log2: [-9, -3]}
  init_scale: {log2: [-1, 1]}
seeds: 3
judge: {hp: lr, loss: validation}
"""
PRODUCT = SWEEP.replace("seeds: 3", "product: true\nseeds: 3")


def stored(folder: Path, text: str = PRODUCT, keep: Callable[[Trial], bool] = lambda trial: True) -> Results:
    """Return the results of a sweep whose trials, those that `keep` wants, have planted losses."""
    plan = PlantedStore(drift={"sp": -0.8}, middle=-6.0, cliff=2.0, kept=keep)
    return planted_results.planted_results(parse_sweep(text), folder, plan)
