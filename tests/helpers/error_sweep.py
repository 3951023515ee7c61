"""Results of a sweep that is judged by an error, without any training."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from planted_errors import bowl
from sweep_text import SAMPLES as SAMPLES_SWEEP
from sweep_text import edited

from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.spec.vocabulary import data_sizes
from hpxfer.store import Store
from hpxfer.trial import DataRef, Expansion, Trial
from hpxfer.trial.result import Curve, TrialResult

DIGEST = "0123456789abcdef"
SAMPLES = 8192
Edit = tuple[str, str]
EDITS: tuple[Edit, ...] = (
    ("lr: [0.01]", "lr: {log2: [-10, -3]}"),
    ("{width: 64, expert_width: 32}]", "{width: 64, expert_width: 32}, {width: 128, expert_width: 64}]"),
    ("validation_samples: 1024", f"validation_samples: {SAMPLES}"),
)
SHAPE_OF = bowl(width=2.2)


def error_spec(*edits: Edit, loss: str = "validation_top5_error", more: str = "") -> SweepSpec:
    """Return a sweep that is judged by an error."""
    text = edited(*EDITS, *edits, text=SAMPLES_SWEEP)
    return parse_sweep(f"{text}judge: {{loss: {loss}, regret_limit: {{loss: 0.03}}}}\n{more}")


def error_result(trial: Trial, *, drift: float = 1.2, samples: int = SAMPLES) -> TrialResult:
    """Return a result whose errors are binomial counts. The optimum stays, but drifts for sp (octaves per doubling)."""
    sp = trial.parameterization is not None and trial.parameterization.name == "sp"
    doublings = math.log2(trial.shape.width / trial.base.width)
    away = math.log2(trial.hps.lr) + 6.3 + (drift * doublings if sp else 0.0)
    rng = np.random.default_rng(int(trial.id[:12], 16))

    def error(best: float, guess: float) -> float:
        return float(rng.binomial(samples, best + (guess - best) * SHAPE_OF(away))) / samples

    top5, top1 = error(0.3 * 0.85**doublings, 0.95), error(0.5 * 0.9**doublings, 0.99)
    loss = 1.0 + 4 * top1
    steps = tuple(range(0, 200, 10))
    values = tuple(loss + 2.0 * math.exp(-step / 40) for step in steps)
    return TrialResult(
        trial_id=trial.id,
        status="finished",
        validation_loss_nats=loss,
        final_window_loss_nats=loss,
        validation_error=top1,
        validation_top5_error=min(top5, top1),
        curves=(Curve(metric="train_loss_nats", steps=steps, values=values),),
        wall_s=8.0,
        tokens_per_s=1000.0,
        stack_size=4,
        device="cpu",
        host="a-machine",
        versions='{"hpxfer": "0.1.0", "torch": "2.13.0"}',
        finished_at="2026-01-01T00:00:00.000+00:00",
    )


def error_store(folder: Path, spec: SweepSpec | None = None, **given: float) -> Path:
    """Write the results of all trials of a sweep to a new folder."""
    spec = spec or error_spec()
    trials = list(Expansion(spec, DataRef(digest=DIGEST, **data_sizes(spec.data))).trials())
    store = Store.open(folder, write=True)
    store.save_sweep(spec, DIGEST)
    store.append([(trial, error_result(trial, **given)) for trial in trials])  # type: ignore[arg-type]
    return folder
