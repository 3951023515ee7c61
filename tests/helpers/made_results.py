"""Made-up results of real trials, and what a store says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweep_text import edited

from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.store import Store
from hpxfer.trial import DataRef, Expansion, Trial
from hpxfer.trial.result import Curve, Status, TrialResult

DIGEST = "0123456789abcdef"
DATA = DataRef(digest=DIGEST, tokenizer="ascii", vocab_size=128)
SPEC = parse_sweep(edited(("lr: [0.01]", "lr: [0.005, 0.01, 0.02]")))
Pair = tuple[Trial, TrialResult]


def trials_of(spec: SweepSpec = SPEC) -> list[Trial]:
    """Return the trials of a sweep over made-up data."""
    return list(Expansion(spec, DATA).trials())


def made(trial: Trial, status: Status = "finished", *, at: int = 0) -> Pair:
    """Return a trial and a result that ended `at` seconds; its numbers and its curves tell it from all others."""
    loss = 1.0 + trial.hps.lr + trial.seed + at
    steps = (0, 10, 20)
    result = TrialResult(
        trial_id=trial.id,
        status=status,
        validation_loss_nats=loss if status == "finished" else None,
        final_window_loss_nats=loss + 0.5 if status == "finished" else None,
        diverged_step=7 if status == "diverged" else None,
        last_finite_loss_nats=9.5 if status == "diverged" else None,
        error="killed" if status == "failed" else None,
        curves=(
            Curve(metric="train_loss_nats", steps=steps, values=(4.0, loss, float("nan"))),
            Curve(metric="grad_rms", layer=1, role="router", steps=steps[:2], values=(0.5, float(at))),
        ),
        wall_s=2.5,
        tokens_per_s=1000.0,
        peak_bytes=2**33,
        stack_size=4,
        device="cpu",
        finished_at=f"2026-01-01T00:{at // 60:02d}:{at % 60:02d}+00:00",
    )
    return trial, result


def stored(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return all rows of both tables of a store, in an order of their own; a curve's NaN equals itself."""
    store = Store.open(folder, write=False)
    return store.read_trials().to_pylist(), sorted(map(repr, store.read_curves().to_pylist()))


def files(folder: Path) -> dict[str, bytes]:
    """Return name -> content of every file in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
