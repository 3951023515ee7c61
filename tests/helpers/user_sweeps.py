"""Sweeps of a user's own trainer, one key a line where an error should point at the line, and small trainers."""

from __future__ import annotations

import sys
from pathlib import Path

from sweep_text import edited

TRAIN = """\
import json, math, os, sys, time
config = json.load(open(sys.argv[1]))
lines = open(config["report_file"], "a", buffering=1)
args, steps, lr = config["args"], config["steps"], config["hps"]["lr"]

def say(**line):
    print(json.dumps(line), file=lines)

def loss_at(step):
    width = config["shape"]["d_model"]
    return 2 + (math.log2(lr) + math.log2(width)) ** 2 / 50 + math.exp(-step / 3) + config["seed"] / 1000

def finish():
    for step in range(steps):
        say(type="report", step=step, loss=loss_at(step), grad_norm=1.0)
    say(type="result", status="finished", validation_loss=loss_at(steps))

"""
ARMS = """\
name: mine
trainer:
  command: [python3, train.py, "{config_json}"]
  files: [train.py]
  arms: {plain: {args: {power: 0}}, scaled: {args: {power: 1}}}
  control: plain
model:
  family: user
  own: {d_model: 64, act: gelu}
training:
  steps: 20
  batch_tokens: 512
axes:
  d_model: [128]
grid:
  lr: [0.01, 0.02]
seeds: 2
resources:
  executor: local
"""
# The same by tables of ours.
TABLES = edited(
    ("  arms: {plain: {args: {power: 0}}, scaled: {args: {power: 1}}}\n  control: plain\n", ""),
    ("  own: {d_model: 64, act: gelu}\n", "  own: {d_model: 64, act: gelu}\n  dims: {width: d_model, depth: 2}\n"),
    ("training:\n", "parameterizations: [completep, sp]\ntraining:\n"),
    text=ARMS,
)


def write_user(folder: Path, program: str = "finish()", *edits: tuple[str, str], text: str = ARMS) -> Path:
    """Write a sweep and its trainer into a folder, and return the sweep's path. The trainer runs on this Python."""
    (folder / "train.py").write_text(TRAIN + program)
    sweep = edited(*edits, text=text).replace("[python3,", f"[{sys.executable},")
    (folder / "mine.yaml").write_text(sweep)
    return folder / "mine.yaml"
