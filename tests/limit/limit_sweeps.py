"""Sweeps of the family mlp along each regime, small enough for an infinite limit, and the trials of their arms."""

from __future__ import annotations

from typing import Any

from hpxfer.scaling.evaluate import Parameterization
from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.trial import DataRef, Expansion, Trial, base_hps

DATA = DataRef(digest="0123456789abcdef", tokenizer="none", vocab_size=0, num_inputs=4, num_targets=1)
HEAD = """\
name: limit-{name}
model:
  family: mlp
  gate: {gate}
  base: {base}
  mlp: {{input_activation: linear, activation: linear, loss: squared_error{options}}}
data: {{source: "{source}"}}
training: {{batch_samples: 4, validation_samples: 4, steps: {steps}, optimizer: {optimizer}{training}}}
parameterizations: [{tables}]
axes: {{width: {axis}}}
{hps}
grid: {{lr: [{lr}]}}
seeds: {seeds}
judge: {{loss: final_window}}
resources: {{executor: local, workers: 1}}
"""
REGIME_I = {
    "name": "i",
    "base": "{width: 16, depth: 1, num_experts: 2, num_active: 2, expert_width: 16}",
    "axis": "{shapes: [{width: 32, expert_width: 32}, {width: 64, expert_width: 64}]}",
    "tables": "mup-i",
}
REGIME_II = {
    "name": "ii",
    "base": "{width: 16, depth: 1, num_experts: 8, num_active: 8, expert_width: 2}",
    "axis": "{shapes: [{width: 32, num_experts: 16, expert_width: 2}, {width: 64, num_experts: 32, expert_width: 2}]}",
    "tables": "mup-ii, mssp-ii",
}
REGIME_III = {
    "name": "iii",
    "base": "{width: 16, depth: 1, num_experts: 4, num_active: 4, expert_width: 8}",
    "axis": "{shapes: [{width: 32, num_experts: 8, expert_width: 16}, {width: 64, num_experts: 16, expert_width: 32}]}",
    "tables": "mup-iii, mssp-iii",
}
DEFAULTS = {
    "gate": "sigmoid",
    "options": "",
    "source": "builtin:teacher/few",
    "steps": 4,
    "optimizer": "sgd",
    "training": "",
    "hps": "",
    "lr": 0.01,
    "seeds": 2,
}


def text_of(regime: dict[str, str], **changed: Any) -> str:
    return HEAD.format(**{**DEFAULTS, **regime, **changed})


def spec_of(regime: dict[str, str], **changed: Any) -> SweepSpec:
    return parse_sweep(text_of(regime, **changed))


def arm_of(spec: SweepSpec, table: str | None = None, seed: int = 0) -> list[Trial]:
    """Return the trials of an arm along the axis at the first LR, one per shape."""
    expansion = Expansion(spec, DATA)
    choice = next(each for each in expansion.choices if table in (None, each.name))
    return along(expansion, choice, seed)


def along(expansion: Expansion, choice: Parameterization, seed: int) -> list[Trial]:
    points = expansion.axes[0].points
    hps = base_hps(expansion.spec)
    return [expansion.trial(choice, point.shape, hps, seed) for point in points]
