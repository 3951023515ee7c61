"""What must hold of a store after a soak: every trial once, none trained again, the numbers of an undisturbed run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hpxfer.store import Store

Seen = dict[str, set[tuple[str, str]]]  # trial id -> when each was finished, and where
DONE = ("finished", "diverged")
# What of a row the trial's spec determines.
NUMBERS = (
    *("status", "final_window_loss_nats", "validation_loss_nats", "diverged_step", "last_finite_loss_nats"),
    *("validation_error", "validation_top5_error"),
)
FILES = {
    *("sweep.yaml", "trials.parquet", "curves.parquet", "progress.json", "report.html", "figures", "recipe.yaml"),
    *("transfer.png", "transfer.svg"),
}
RUNS = "runs"  # of a user's own trainer
# Of the rounds of a soak one is enough: the last may have no kill left that is aimed at a checkpoint.
RESUMED = "some went on from a checkpoint"


@dataclass(frozen=True)
class Check:
    """One thing that must hold, and what was found."""

    name: str
    ok: bool
    found: str


@dataclass
class History:
    """All that was ever seen of the trials that are done."""

    seen: Seen = field(default_factory=dict)
    looks: int = 0
    lost: set[str] = field(default_factory=set)  # done at one look, gone at the next

    def add(self, folder: Path) -> None:
        """Look at every row of every file of a store."""
        now = history_of(folder)
        self.lost |= self.seen.keys() - now.keys()
        for trial_id, rows in now.items():
            self.seen.setdefault(trial_id, set()).update(rows)
        self.looks += 1

    @property
    def again(self) -> list[str]:
        """The trials that were trained to their end more than once."""
        return sorted(trial_id for trial_id, rows in self.seen.items() if len(rows) > 1)


def history_of(folder: Path) -> Seen:
    """Return the times and places of every done row of every file, merged or not."""
    out: Seen = {}
    for path in sorted(folder.glob("trials*.parquet")):
        table = pq.read_table(path, columns=["trial_id", "status", "finished_at", "host"])
        for row in table.to_pylist():
            if row["status"] in DONE:
                out.setdefault(row["trial_id"], set()).add((row["finished_at"], row["host"]))
    return out


def checks(
    undisturbed: Path, folder: Path, history: History, finished: Seen, *, has_changed: bool = False
) -> tuple[Check, ...]:
    """Return what holds of a folder; `finished` is its history before a run that had nothing to do.

    If the sweep file `has_changed` between runs, the folder keeps the earlier ones.
    """
    mine, its = (_rows(Store.open(path, write=False)) for path in (folder, undisturbed))
    my_curves, its_curves = (_curves(Store.open(path, write=False)) for path in (folder, undisturbed))
    twice = len(pq.read_table(folder / "trials.parquet", columns=["trial_id"])) - len(mine)
    pairs = {key: (_numbers(mine.get(key, {})), _numbers(its[key])) for key in its}
    other = [f"{a} for {b}: {mine.get(key, {}).get('error')}" for key, (a, b) in pairs.items() if a != b]
    differing = [key for key in its if my_curves.get(key) != its_curves.get(key)]
    earlier = {path.name for path in folder.glob("sweep-????????.yaml")} if has_changed else set()
    extra = sorted({path.name for path in folder.iterdir()} - FILES - earlier - {RUNS})
    extra += half_written(folder / RUNS)
    resumes = [row["resumes"] or 0 for row in mine.values()]
    settled = history_of(folder) == finished
    return (
        Check("every trial is stored exactly once", mine.keys() == its.keys() and not twice, f"{len(mine)} trials"),
        Check("no done trial was lost", not history.lost, f"{len(history.lost)} in {history.looks} looks"),
        Check("no done trial was trained again", not history.again, f"{len(history.again)}"),
        Check("a further run had nothing to do", settled, "the same rows" if settled else "other rows"),
        Check("numbers are those of an undisturbed run", not other, "; ".join([f"{len(other)} differ", *other])),
        Check("curves are those of an undisturbed run", not differing, f"{len(differing)} differ"),
        Check(RESUMED, any(resumes), f"{sum(map(bool, resumes))} trials, {sum(resumes)} times"),
        Check("nothing else is left in the results", not extra, ", ".join(extra) or "nothing"),
    )


def half_written(runs: Path) -> list[str]:
    """Return what is not whole in the folders of trials of a user's own trainer, or not said of their last attempt."""
    found = []
    for folder in sorted(runs.iterdir()) if runs.exists() else ():
        attempts = sorted(int(path.name.partition("-")[2]) for path in folder.glob("attempt-*"))
        files = ["config.json", f"attempt-{attempts[-1]}/ended.json" if attempts else "attempt-1"]
        files += [str(path.relative_to(folder)) for path in folder.glob("ckpt/*/*")]
        files += [str(path.relative_to(folder)) for path in folder.glob("attempt-*/ended.json")]
        for name in dict.fromkeys(files):
            try:
                json.loads((folder / name).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                found.append(f"{folder.name}/{name}")
        found += [str(path) for path in folder.rglob("*.tmp")]
    return found


def _rows(store: Store) -> dict[str, dict[str, Any]]:
    return {row["trial_id"]: row for row in store.read_trials().to_pylist()}


def _numbers(row: dict[str, Any]) -> list[Any]:
    return [row.get(name) for name in NUMBERS]


def _curves(store: Store) -> dict[str, set[tuple[Any, ...]]]:
    """Return trial id -> its curves, each as a tuple."""
    out: dict[str, set[tuple[Any, ...]]] = {}
    for row in store.read_curves().to_pylist():
        trial_id = row.pop("trial_id")
        curve = tuple(tuple(part) if isinstance(part, list) else part for part in row.values())
        out.setdefault(trial_id, set()).add(curve)
    return out
