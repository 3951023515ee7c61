"""The results folders below a root, each with its state, trials, verdict and size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from hpxfer.analysis import transfer_report
from hpxfer.errors import HpxferError
from hpxfer.host import Table, path_problem, reason, require_reachable, text_table
from hpxfer.progress import FILE as PROGRESS_FILE
from hpxfer.progress import view_now
from hpxfer.results import MISSING, Results, load_results
from hpxfer.storage import LEASE_FILE
from hpxfer.store import SWEEP_FILE, location_at

# A folder with any of these files is a results folder, or was one.
_MARKS = (SWEEP_FILE, "trials*.parquet", PROGRESS_FILE, LEASE_FILE)

# running: a driver holds the lease; finished: no trial is missing or failed; stopped: the last run was interrupted, or
# its driver is gone; partial: trials are missing or failed, and no run has said why.
State = Literal["running", "finished", "stopped", "partial"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of one parameterization along one axis: transfers, stays, drifts or undecided."""

    parameterization: str
    axis: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A results folder. `problem` says why nothing more is known of it; then every other field is at its default."""

    folder: Path
    size_bytes: int = 0
    sweep: str | None = None
    state: State | None = None
    num_trials: int = 0  # different trials of the sweep; of an adaptive search, those known so far
    num_done: int = 0  # of these: finished, diverged or stopped early
    num_failed: int = 0
    verdicts: tuple[Verdict, ...] = ()
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**asdict(self), "folder": str(self.folder)}


def list_results(root: Path, *, with_verdicts: bool = True) -> list[Listed]:
    """Return every results folder at or below a root, ordered by path.

    Raises HpxferError if the root is no folder, or one that cannot be read.
    """
    if not root.is_dir():
        got, fix = "nothing of that name", "`hpxfer run SWEEP` makes results, or name another folder"
        if root.exists():
            got, fix = "a file", "name the folder that holds results folders, e.g. results"
        raise HpxferError(f"{root}: must be a folder, got {got}; {fix}")
    require_reachable(f"{root}/.")
    unreadable: list[Listed] = []

    def note(error: OSError) -> None:
        if error.filename == str(root):
            raise HpxferError(path_problem(error) or f"{root}: cannot be read: {reason(error)}")
        unreadable.append(Listed(folder=Path(error.filename), problem=f"cannot be read: {error.strerror}"))

    found = [_listed(folder, with_verdicts) for folder in _results_folders(root, note)]
    return sorted([*found, *unreadable], key=lambda entry: entry.folder)


def listing_table(entries: Sequence[Listed]) -> Table:
    """Return one row per results folder that can be read."""
    rows = []
    for entry in entries:
        failed = f", {entry.num_failed} failed" if entry.num_failed else ""
        trials, size = f"{entry.num_done}/{entry.num_trials}{failed}", f"{entry.size_bytes / 2**20:.1f} MiB"
        rows.append((str(entry.folder), entry.state, trials, size, verdict_text(entry.verdicts) or None))
    return text_table("", ("results", "state", "trials", "size", "verdict"), rows)


def verdict_text(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts in short, e.g. `completep-moe transfers; sp drifts along width`.

    The axes are named where a parameterization does not get the same verdict along all of them. Axes along which it
    transfers are then left out.
    """
    axes: dict[str, dict[str, list[str]]] = {}
    for found in verdicts:
        axes.setdefault(found.parameterization, {}).setdefault(found.verdict, []).append(found.axis)
    parts = []
    for name, by_verdict in axes.items():
        for verdict, along in sorted(by_verdict.items()):
            words = {"undecided": "is undecided", "stays": "did not move"}.get(verdict, verdict)
            if len(by_verdict) == 1:
                parts.append(f"{name} {words}")
            elif verdict != "transfers":
                parts.append(f"{name} {words} along {', '.join(along)}")
    return "; ".join(parts)


def _results_folders(root: Path, on_error: Callable[[OSError], None]) -> Iterator[Path]:
    """Yield the results folders at or below a root. What lies within a results folder is not looked at."""
    for path, folders, files in os.walk(root, onerror=on_error):
        if any(fnmatch(file, mark) for file in files for mark in _MARKS):
            folders.clear()
            yield Path(path)
        else:
            folders[:] = sorted(name for name in folders if not name.startswith("."))


def _listed(folder: Path, with_verdicts: bool) -> Listed:
    try:
        watched = view_now(location_at(folder)).state
        running = watched in ("running", "waiting")
        try:
            results = load_results(folder)
        except HpxferError:
            if not running:
                raise
            return Listed(folder=folder, size_bytes=_size(folder), state="running")  # it has stored nothing yet
        return _read(folder, results, running, watched in ("stopped", "gone"), with_verdicts)
    except OSError as error:
        return Listed(folder=folder, problem=f"cannot be read: {reason(error)}")
    except HpxferError as error:
        return Listed(folder=folder, problem=str(error).removeprefix(f"{folder}: "))


def _read(folder: Path, results: Results, running: bool, stopped: bool, with_verdicts: bool) -> Listed:
    status = results.cells.drop_duplicates("trial_id")["status"]
    num_failed = int((status == "failed").sum())
    num_done = int((~status.isin(["failed", MISSING])).sum())
    state: State = "partial"
    if running:
        state = "running"
    elif num_done == len(status):
        state = "finished"
    elif stopped:
        state = "stopped"
    return Listed(
        folder=folder,
        size_bytes=_size(folder),
        sweep=results.spec.name,
        state=state,
        num_trials=len(status),
        num_done=num_done,
        num_failed=num_failed,
        verdicts=tuple(
            Verdict(parameterization=one.parameterization, axis=one.axis, verdict=one.verdict)
            for one in (transfer_report(results).findings if with_verdicts else ())
        ),
    )


def _size(folder: Path) -> int:
    """Return the bytes of every file at or below a folder."""
    paths = (Path(path, name) for path, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_size for path in paths)
