"""A store of made-up trials with planted optima, curves and divergence, as a sweep of two HPs would leave it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpxfer.results import Results, load_results
from hpxfer.spec import parse_sweep
from hpxfer.store import Store
from hpxfer.trial import DataRef, Expansion, Trial
from hpxfer.trial.result import Curve, TrialResult

DATA = DataRef(digest="0123456789abcdef", tokenizer="ascii", vocab_size=128)
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
STEPS = (*range(100), *range(100, 200, 2))


def planted_results(folder: Path, text: str = PRODUCT, keep: Callable[[Trial], bool] = lambda trial: True) -> Results:
    """Return the results of a sweep whose trials, those that `keep` wants, have planted losses.

    The best lr of completep-moe is 2^-6 everywhere, that of sp falls 0.8 octaves a doubling of width; both fall half an
    octave per octave of init_scale. Two octaves above it all diverges. Doubling the experts is worth 0.02 nats.
    """
    spec = parse_sweep(text)
    store = Store.open(folder, write=True)
    store.append([(trial, planted(trial)) for trial in Expansion(spec, DATA).trials() if keep(trial)])
    store.save_sweep(spec, DATA.digest)
    return load_results(folder)


def planted(trial: Trial) -> TrialResult:
    """Return the result of one trial."""
    doublings = math.log2(trial.shape.width / trial.base.width)
    more_experts = math.log2(trial.shape.num_experts / trial.base.num_experts)
    name = None if trial.parameterization is None else trial.parameterization.name
    init = math.log2(trial.hps.init_scale)
    off = math.log2(trial.hps.lr) + 6.0 + 0.5 * init + (0.8 * doublings if name == "sp" else 0.0)
    rng = np.random.default_rng([trial.seed, round(8 * (off + 20)), round(doublings), round(more_experts)])
    loss = 2.0 + 0.6 * 2 ** (-0.5 * doublings) - 0.02 * more_experts + 0.02 * off**2 + 0.01 * init**2
    loss += 0.003 * float(rng.standard_normal())
    diverged_step = None if off <= 2.0 + 0.2 * trial.seed else 60 + 10 * trial.seed
    steps = [step for step in STEPS if diverged_step is None or step < diverged_step]
    fall = 2.9 * np.exp(-np.array(steps) / 25.0)
    values = loss + fall * (1 + 0.02 * doublings) + 0.02 * np.sin(np.array(steps)) / (1 + trial.seed)
    load = 0.25 * (0.4 + 0.1 * max(off, 0.0)) * np.exp(-np.array(steps[::4]) / 80.0)
    return TrialResult(
        trial_id=trial.id,
        status="finished" if diverged_step is None else "diverged",
        validation_loss_nats=loss if diverged_step is None else None,
        final_window_loss_nats=loss if diverged_step is None else None,
        diverged_step=diverged_step,
        last_finite_loss_nats=None if diverged_step is None else 8.0,
        curves=(
            Curve(metric="train_loss_nats", steps=tuple(steps), values=tuple(values.tolist())),
            Curve(metric="load_deviation", layer=0, steps=tuple(steps[::4]), values=tuple(load.tolist())),
        ),
        wall_s=1.0,
        tokens_per_s=1000.0,
        stack_size=1,
        device="cpu",
        finished_at="2026-01-01T00:00:00+00:00",
    )
