"""The sweeps of a soak, by name, and the files that they read."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

ANY_TRAINER = "any-trainer-command"
_RESOURCES = "resources: {{executor: {executor}, workers: 2, stack_size: 2, checkpoint_s: {checkpoint_s}{way}}}\n"
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
"""
# What differs from step to step and must go on from a checkpoint: ties drawn per sample, a bias and its moments, the
# epochs of a file. A batch is no whole number of vectors.
_MLP = """\
name: soak
model:
  family: mlp
  gate: softmax
  ties: random
  base: {{width: 16, depth: 2, num_experts: 4, num_active: 2, expert_width: 8}}
  mlp: {{router_bias: {router_bias}, residual: true}}
data: {{source: "npz:{samples}", epochs: 100000}}
training: {{batch_samples: 50, steps: {steps}, validation_samples: 500, optimizer: {optimizer}}}
parameterizations: [{tables}]
axes:
  width: {{shapes: [{{width: 16}}, {{width: 32}}], allow_kappa_change: true}}
grid:
  lr: {{values: [0.002, 0.008, 0.03, 1.0e+30]}}
seeds: 1
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
# Name -> the sweep file, and the factor by which its trials have more steps than those of gpt: they are faster.
SWEEPS: dict[str, tuple[str, int]] = {
    "gpt": (_GPT + _RESOURCES, 1),
    "mlp": (_MLP + _RESOURCES, 4),
    "mlp-schedule": (_MLP + _RESOURCES, 4),
    ANY_TRAINER: (_ANY, 2),
    "mlp-search": (_SEARCH + _RESOURCES.replace("2, checkpoint", "4, curves: none, checkpoint"), 1),
}
_OPTIONS = {
    "mlp": {"router_bias": "learned", "optimizer": "adamw", "tables": "mup, sp"},
    "mlp-schedule": {"router_bias": "schedule", "optimizer": "sgd", "tables": "mup-i, sp"},
}
_CLASSES, _INPUTS = 12, 13


def sweep_text(
    name: str, *, steps: int, executor: str, checkpoint_s: float, pieces: str, way: str, folder: Path
) -> str:
    """Return the sweep file of a soak. `folder` holds what `write_data` wrote."""
    text, factor = SWEEPS[name]
    options = {"samples": folder / "samples.npz", "python": sys.executable, **_OPTIONS.get(name, {})}
    return text.format(
        steps=factor * steps, executor=executor, checkpoint_s=checkpoint_s, pieces=pieces, way=way, **options
    )


def write_data(folder: Path) -> None:
    """Write what a sweep reads: samples, points around one point per class, and the trainer of our own."""
    shutil.copy(Path(__file__).with_name("soak_trainer.py"), folder)
    rng = np.random.default_rng(0)
    classes = np.arange(1200) % _CLASSES
    centers = rng.standard_normal((_CLASSES, _INPUTS), dtype=np.float32)
    inputs = centers[classes] + rng.standard_normal((len(classes), _INPUTS), dtype=np.float32)
    np.savez(folder / "samples.npz", x=inputs, y=classes)
