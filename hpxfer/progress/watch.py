"""Watch: follow the run of a results folder from another shell. It takes no lease and no lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from hpxfer.errors import HpxferError
from hpxfer.progress.status import RunStatus, Written, as_data, read
from hpxfer.storage import decoded
from hpxfer.store import SWEEP_FILE, ResultsLocation, Store, damage, list_parts, load_stored

EVERY_S = 1.0
EVERY_REMOTE_S = 10.0  # every view sends requests to the storage
# A driver whose report and lease have not changed for this long, by this process's own clock, counts as gone. A driver
# writes its report every two seconds and its lease every ten. Times of day are never compared, because hosts do not
# agree on them.
GONE_S = 60.0

# waiting: a driver holds the folder and has not reported yet; none: no run is known; gone: the driver ended or was
# suspended without a last report. The others are the driver's own words.
State = Literal["waiting", "none", "running", "ended", "stopped", "gone"]
OVER: tuple[State, ...] = ("none", "ended", "stopped", "gone")


@dataclass(frozen=True, kw_only=True)
class RunView:
    """What a results folder shows at one moment."""

    location: ResultsLocation
    state: State
    written: Written | None = None
    lease: bytes | None = None

    @property
    def run_status(self) -> RunStatus | None:
        return None if self.written is None else self.written.progress

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def to_dict(self) -> dict[str, Any]:
        """Return the view as JSON-ready data."""
        process = {} if self.written is None else {"host": self.written.host, "pid": self.written.pid}
        progress = None if self.run_status is None else as_data(self.run_status)
        return {"results": self.location.where, "state": self.state, **process, "progress": progress}

    def require_run(self) -> None:
        """Raise HpxferError if no run has reported here and the folder holds no sweep with trials either."""
        folder, where = self.location.folder, self.location.where
        if self.written is not None or (self.lease is not None and decoded(self.lease) is not None):
            return
        if not (folder / SWEEP_FILE).exists() and not list_parts(folder):
            raise HpxferError(
                f"{where}: must be a results folder with {SWEEP_FILE} and trials*.parquet, got neither; "
                f"name one that hpxfer run made, e.g. results/quickstart; `hpxfer list {where}` lists those below it"
            )
        if self.lease is not None:
            return  # a lease that cannot be read may be a driver's
        load_stored(folder)
        store = Store.open(folder, write=False)
        if not len(store.read_trials(["trial_id"])):
            passed_over = "".join(f"\n{problem}" for problem in store.problems)
            raise HpxferError(
                f"{where}: must hold a run's report or at least one trial in trials*.parquet, got neither; "
                f"`hpxfer run SWEEP.yaml` makes them{passed_over}"
            )

    def problems(self) -> tuple[str, ...]:
        """Return the files of the folder that cannot be read. They are read only where no driver writes."""
        if not self.is_over:
            return ()
        store = Store.open(self.location.folder, write=False)
        store.done_ids()
        damaged = damage(self.location.folder)
        return (*store.problems, *([damaged] if damaged else []))

    def text(self) -> str:
        """Return what the state means, as a line for a person."""
        where = "" if self.written is None else f" ({self.written.host}, process {self.written.pid})"
        last = None if self.written is None or self.written.state == "running" else self.written.state
        report = f"the last report of a run was: {last}" if last else "it has reported nothing yet"
        parts = [
            {
                "waiting": f"a driver holds the folder; {report}",
                "none": "no run has reported here",
                "running": f"running{where}",
                "ended": "the run has ended",
                "stopped": f"the run was stopped before its end{where}",
                "gone": f"the driver is gone{where}",
            }[self.state]
        ]
        if self.is_over:  # no driver writes, so the store can be read
            parts.append(f"{len(Store.open(self.location.folder, write=False).done_ids())} trials are stored")
        if self.state in ("stopped", "gone"):
            parts.append("the same `hpxfer run` trains the rest")
        return f"{self.location.where}: {'; '.join(parts)}"


def view_now(location: ResultsLocation) -> RunView:
    """Return what a results folder shows now. Raise HpxferError if it is no results folder.

    A single view shows that a driver is gone only on the driver's own host, or if the driver released its lease.
    `views` shows it anywhere.
    """
    if not location.is_remote and not location.folder.is_dir():
        got = "a file" if location.folder.exists() else "nothing of that name"
        raise HpxferError(f"{location.where}: must be a results folder that hpxfer run made, got {got}")
    found = _read_view(location)
    # The driver may have come or gone between the two reads: its last report counts.
    return _read_view(location) if found.state == "gone" else found


def _read_view(location: ResultsLocation) -> RunView:
    location.refresh()
    lease, written = location.lease_storage.read(), read(location.folder)
    return RunView(location=location, state=_state(lease, written), written=written, lease=lease)


def _state(lease: bytes | None, written: Written | None) -> State:
    if written is None:
        return "none" if lease is None else "waiting"
    if written.state == "running":
        if lease is None:
            return "gone"
        if not written.is_gone:
            return "running"
        holder = decoded(lease)
        another = holder is not None and (holder.pid, holder.started) != (written.pid, written.started)
        return "waiting" if another and holder and not holder.is_gone else "gone"
    return written.state if lease is None else "waiting"


def views(
    location: ResultsLocation,
    *,
    next_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[RunView]:
    """Yield a view every few seconds until the run is over. The last view is of a run that is over.

    If the driver is gone, wait this long for the next one.
    """
    signature: tuple[object, ...] = ()
    changed_at = clock()
    gone_since: float | None = None
    while True:
        found = view_now(location)
        # What changes while the driver lives.
        report = None if found.written is None else (found.written.run, found.written.counter)
        if (new := (found.state, found.lease, report)) != signature:
            signature, changed_at = new, clock()
        elif not found.is_over and clock() - changed_at >= GONE_S:
            # Nothing changes: the lease has no driver.
            last = "running" if found.written is None or found.state == "running" else found.written.state
            found = replace(found, state="gone" if last == "running" else last)
        yield found
        gone_since = None if found.state != "gone" else clock() if gone_since is None else gone_since
        if found.is_over and (gone_since is None or clock() - gone_since >= next_s):
            return
        sleep(EVERY_REMOTE_S if location.is_remote else EVERY_S)
