"""The sweeps of a soak, by name."""

from __future__ import annotations

import sys
from pathlib import Path

ANY_TRAINER = "any-trainer-command"
_GPT = """\
name: soak
model:
  family: gpt
  base: {{width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 8}}
  context: 32
data: {{source: "builtin:stdlib"}}
training: {{batch_tokens: 256, steps: {steps}, validation_tokens: 512{pieces}}}
parameterizations: [completep-moe, sp]
axes:
  width: [32, 64]
grid:
  lr: {{values: [0.002, 0.008, 0.03, 100000.0]}}
seeds: 1
resources: {{executor: {executor}, workers: 2, stack_size: 2, checkpoint_s: {checkpoint_s}{way}}}
"""
# A user's own trainer: a command with two ranks and checkpoints. HPXFER_SOAK and its role mark its processes.
_ANY = """\
name: soak
trainer:
  command: ["{python}", soak_trainer.py, "{{config_json}}"]
  files: [soak_trainer.py]
  arms: {{scaled: {{args: {{power: 1}}}}, plain: {{args: {{power: 0}}}}}}
  control: plain
  env: [HPXFER_SOAK, HPXFER_SOAK_ROLE]
  timeouts: {{grace_s: 2}}
model: {{family: user, own: {{d_model: 64}}}}
training: {{steps: {steps}}}
axes: {{d_model: [64, 128]}}
grid:
  lr: {{values: [0.002, 0.03, 100000.0]}}
seeds: 1
resources: {{executor: {executor}, workers: 2}}
"""
_SEARCH = """\
name: soak
model:
  family: mlp
  base: {{width: 16, depth: 1, num_experts: 4, num_active: 4, expert_width: 8}}
data: {{source: "builtin:shapes"}}
training: {{batch_samples: 50, steps: {steps}, validation_samples: 500, optimizer: sgd}}
parameterizations: [mssp-ii]
axes:
  width: [16]
grid:
  lr: {{log2: [-3, 3], step: 2}}
search:
  kind: staged-grid
  multipliers: [init_scale, router.lr_mult, readout.lr_mult]
  broad: {{points: 3, ratio: 16}}
  fine: {{points: 3, ratio: 4}}
  recenters: 1
seeds: 1
resources: {{executor: {executor}, workers: 2, stack_size: 4, curves: none, checkpoint_s: {checkpoint_s}{way}}}
"""
# Name -> the sweep file, and the factor by which its trials have more steps than those of gpt: they are faster.
SWEEPS: dict[str, tuple[str, int]] = {"gpt": (_GPT, 1), ANY_TRAINER: (_ANY, 2), "mlp-search": (_SEARCH, 1)}
TRAINER = Path(__file__).with_name("soak_trainer.py")


def sweep_text(name: str, *, steps: int, **options: object) -> str:
    """Return the sweep file of a soak: executor, checkpoint_s, pieces and way are the options."""
    text, factor = SWEEPS[name]
    return text.format(steps=factor * steps, python=sys.executable, **options)
