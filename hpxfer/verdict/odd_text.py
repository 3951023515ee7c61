"""Odd runs in words: which run it is, what is odd about it, and what counts instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpxfer.verdict.findings import Finding, OddRun
from hpxfer.verdict.lattice import value_text
from hpxfer.verdict.loss import JudgedLoss

MOST_NAMED = 5  # notes on runs and cells of each kind


def run_text(shape: str, value: float, seed: int, run: str | None) -> str:
    """Return what a reader knows a run by, e.g. `the run of width 64, HP 2^-7, seed 1 (row 17 of runs.csv)`."""
    where = f"the run of {shape}, HP {value_text(value)}, seed {seed}"
    return where if run is None else f"{where} ({run})"


def odd_texts(finding: Finding, *, dead: bool = True) -> list[str]:
    """Return a sentence on each run that is left out, each cell whose seeds disagree, and each shape with dead runs.

    Without `dead`, only runs that someone has to look at.
    """
    found = {why: [run for run in finding.odd_runs if run.why == why] for why in ("apart", "disagrees", "dead")}
    cells: dict[tuple[str, float], list[OddRun]] = {}
    for run in found["disagrees"]:
        cells.setdefault((run.shape, run.value), []).append(run)
    shapes: dict[str, list[OddRun]] = {}
    for run in found["dead"]:
        shapes.setdefault(run.shape, []).append(run)
    return [
        *_few([_apart(run, finding.judged) for run in found["apart"]], "runs are left out"),
        *_few([_disagree(runs, finding.judged) for runs in cells.values()], "HPs have seeds that disagree"),
        *(_dead(runs) for runs in shapes.values() if dead),
    ]


def _few(texts: Sequence[str], what: str) -> Iterator[str]:
    yield from texts[:MOST_NAMED]
    if len(texts) > MOST_NAMED:
        yield f"{len(texts) - MOST_NAMED} more {what}"


def _apart(run: OddRun, judged: JudgedLoss) -> str:
    name = run_text(run.shape, run.value, run.seed, run.run)
    side = "above" if run.away_nats > 0 else "below"
    away = f"{judged.amount(abs(run.away_nats))} {side} the other seeds of its cell"
    return f"{name} ends {away} and is left out: check its label, its length and its data"


def _disagree(runs: Sequence[OddRun], judged: JudgedLoss) -> str:
    low, high = (end(runs, key=lambda run: run.away_nats) for end in (min, max))
    apart = f"differ by {judged.amount(max(abs(run.away_nats) for run in runs))}, more than noise"
    ids = [run.run for run in (low, high) if run.run is not None]
    named = f" ({'; '.join(ids)})" if ids else ""
    where = f"{low.shape}, HP {value_text(low.value)}"
    return (
        f"{where}: its {len(runs)} seeds {apart}{named}; none is left out, and the cell counts as known to half of that"
    )


def _dead(runs: Sequence[OddRun]) -> str:
    values, losses = sorted({run.value for run in runs}), [run.loss for run in runs]
    at = value_text(values[0]) if len(values) == 1 else f"{value_text(values[0])} to {value_text(values[-1])}"
    ends = " to ".join(dict.fromkeys(f"{loss:.3g}" for loss in (min(losses), max(losses))))
    count = "1 run counts" if len(runs) == 1 else f"{len(runs)} runs count"
    died = f"training seems to have died, as it ended far above other HPs at {ends}"
    return f"{runs[0].shape}, HP {at}: {died}; {count} as diverged"
