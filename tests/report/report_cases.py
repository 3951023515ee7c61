"""Stores with planted losses, and reports on them without a figure being drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep_text import edited

from hpxfer.analysis import Analysis, transfer_report
from hpxfer.analysis.followup import FollowUp
from hpxfer.analysis.statistics import STATISTICS, Found
from hpxfer.analysis.statistics.statistic import frame_of
from hpxfer.report import Report, Source, make_report
from hpxfer.results import Results, load_results
from hpxfer.spec import parse_sweep
from hpxfer.store import Store
from hpxfer.trial import DataRef, Expansion, Trial
from hpxfer.trial.result import Curve, TrialResult

DIGEST = "0123456789abcdef"
GRID = ("lr: [0.01]", "lr: {log2: [-9, -4]}")
EVIL = "<script>alert('x')</script>\"&{{ 7*7 }}]]>"
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 50" width="100pt" height="50pt">'
    '<g><path d="M 0 0 L 100 50" style="stroke: #123456"/><text x="1" y="9">picture</text></g></svg>'
)
# The smallest PNG there is: one transparent pixel.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)


@dataclass(frozen=True, kw_only=True)
class Stub:
    """A figure that nothing was drawn for."""

    name: str = "transfer"
    title: str = "completep-moe transfers"
    caption: str = "Loss against log2 lr."
    csv: str = "lr,loss\n1,2\n"
    svg: str = SVG
    png: bytes = PNG
    aside: bool = False
    verdict_axis: str | None = None
    leads: int | None = None


def planted(trial: Trial, *, fails: bool = False, diverges: bool = False) -> TrialResult:
    """Return a result whose optimum drifts for sp and stays for others.

    At the largest LR a trial diverges; everywhere if `diverges`.
    """
    sp = trial.parameterization is not None and trial.parameterization.name == "sp"
    doublings = math.log2(trial.shape.width / trial.base.width)
    away = math.log2(trial.hps.lr) + 6.5 + (1.4 * doublings if sp else 0.0)
    loss = 3.0 - 0.1 * doublings + 0.02 * away**2 + 0.003 * math.sin(37 * away + 11 * trial.seed + 5 * doublings)
    status = "failed" if fails else "diverged" if math.log2(trial.hps.lr) > -4.5 or diverges else "finished"
    done = status == "finished"
    steps = tuple(range(0, 200 if done else 70, 10))
    values = tuple(loss + 2.0 * math.exp(-step / 40) for step in steps)
    return TrialResult(
        trial_id=trial.id,
        status=status,
        validation_loss_nats=loss if done else None,
        final_window_loss_nats=loss + 0.01 if done else None,
        diverged_step=70 if status == "diverged" else None,
        last_finite_loss_nats=9.5 if status == "diverged" else None,
        error=f"Traceback: {EVIL}" if fails else None,
        curves=() if fails else (Curve(metric="train_loss_nats", steps=steps, values=values),),
        wall_s=8.0,
        tokens_per_s=1000.0,
        peak_bytes=2**30,
        stack_size=4,
        device="cpu",
        host="a-machine",
        versions='{"hpxfer": "0.1.0", "torch": "2.13.0"}',
        finished_at="2026-01-01T00:00:00.000+00:00",
    )


def write_store(
    folder: Path, *edits: tuple[str, str], every: int = 1, failing: Iterable[int] = (), diverging: bool = False
) -> Path:
    """Write the results of every n-th trial of a sweep to a new folder.

    Trials at the places `failing` fail. All others diverge if `diverging`.
    """
    spec = parse_sweep(edited(GRID, *edits))
    trials = list(Expansion(spec, DataRef(digest=DIGEST, tokenizer="ascii", vocab_size=128)).trials())
    bad = set(failing)
    store = Store.open(folder, write=True)
    store.save_sweep(spec, DIGEST)
    store.append(
        [
            (trial, planted(trial, fails=place in bad, diverges=diverging))
            for place, trial in enumerate(trials)
            if place % every == 0
        ]
    )
    return folder


def bare_analysis(results: Results, **given: Any) -> Analysis:
    """Return the verdict, with no statistics but the given ones."""
    return Analysis(
        sweep=results.spec.name,
        hp=results.spec.judged_hp,
        loss=results.spec.judge.loss,
        reports=given.get("reports", (transfer_report(results),)),
        statistics={
            statistic.name: given.get(statistic.name, Found(frame=frame_of((), statistic.columns)))
            for statistic in STATISTICS.rows()
        },
        follow_up=FollowUp(yaml=None, why_not="nothing is undecided"),
        notes=given.get("notes", ()),
    )


def source(folder: Path, *figures: Any, **given: Any) -> Source:
    """Return a folder as a report reads it."""
    results = load_results(folder)
    return Source(results=results, analysis=bare_analysis(results, **given), figures=figures)


def report_of(*folders: Path) -> Report:
    """Return the report on folders, with one figure each."""
    return make_report([source(folder, Stub()) for folder in folders])
