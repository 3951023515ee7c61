"""The trainer's benchmark: a stack of 8 trials against the same 8 one at a time, interleaved in one run."""

from __future__ import annotations

import datetime
import json
import platform
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import hpxfer
from hpxfer.data import data_ref
from hpxfer.errors import HpxferError
from hpxfer.hps import HPs
from hpxfer.spec import parse_sweep
from hpxfer.stack import Stack
from hpxfer.train.trainer import train
from hpxfer.trial import Expansion, Trial

STACK = 8
ROUNDS = 5
# (width, steps a round): long enough that starting a run is a small part of it.
WIDTHS = ((32, 60), (64, 40), (128, 20))

_SWEEP = """
name: trainer-bench
model:
  family: gpt
  base: {width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}
  context: 64
  tied_embeddings: false
  norm_gains: false
data: {source: "builtin:stdlib"}
training: {batch_tokens: 512, steps: STEPS, validation_tokens: 512}
parameterizations: [completep-moe]
axes: {width: [32]}
grid: {lr: {log2: [-12, -5]}}
"""


def bench_trainer() -> list[dict[str, Any]]:
    """Return a row a width: medians of milliseconds a trial-step for K = 1 and K = 8, and their ratio."""
    return [_bench_width(width, steps) for width, steps in WIDTHS]


def bench_text(rows: list[dict[str, Any]]) -> str:
    """Return the rows as an aligned table."""
    lines = [f"{'width':>5}  {'K=1 ms':>8}  {f'K={STACK} ms':>8}  {'ratio':>6}   (a trial-step, medians of {ROUNDS})"]
    for row in rows:
        lines.append(
            f"{row['width']:>5}  {row['single_ms']:>8.2f}  {row['stacked_ms']:>8.2f}  {row['throughput_ratio']:>6.2f}"
        )
    return "\n".join(lines)


def append(rows: list[dict[str, Any]], folder: Path) -> None:
    """Append one JSON line with date, versions and rows to trainer.jsonl in `folder`."""
    entry = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "hpxfer bench trainer",
        "machine": f"{platform.machine()}, {'cuda' if torch.cuda.is_available() else 'cpu'}",
        "versions": {"hpxfer": hpxfer.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "rows": rows,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "trainer.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as error:
        raise HpxferError(f"{folder}: cannot be written: {error.strerror}; choose another --output") from None


def _bench_width(width: int, steps: int) -> dict[str, Any]:
    trials = _trials(width, steps)
    _seconds([Stack(trials=trials)])  # warm: data, allocator
    single, stacked = [], []
    for _ in range(ROUNDS):
        stacked.append(_seconds([Stack(trials=trials)]))
        single.append(_seconds([Stack(trials=(trial,)) for trial in trials]))
    per_step = 1000 / (STACK * steps)
    return {
        "width": width,
        "trials": STACK,
        "steps": steps,
        "single_ms": statistics.median(single) * per_step,
        "stacked_ms": statistics.median(stacked) * per_step,
        "throughput_ratio": statistics.median(a / b for a, b in zip(single, stacked, strict=True)),
    }


def _trials(width: int, steps: int) -> tuple[Trial, ...]:
    spec = parse_sweep(_SWEEP.replace("STEPS", str(steps)), "bench")
    expansion = Expansion(spec, data_ref(spec.data))
    shape = replace(spec.base_shape, width=width, expert_width=width)
    choice = expansion.choices[0]
    return tuple(
        Trial(
            id=f"bench-{k}",
            setting=expansion.setting,
            shape=shape,
            base=spec.base_shape,
            parameterization=choice,
            hps=HPs(lr=2.0 ** (-12 + k)),
            seed=0,
        )
        for k in range(STACK)
    )


def _seconds(stacks: list[Stack]) -> float:
    """Return the wall time of the stacks, each as its results report it: training, logging and validation."""
    total = 0.0
    for stack in stacks:
        for event in train(stack):
            if isinstance(event, tuple):
                assert event[0].wall_s is not None
                total += event[0].wall_s
    return total
