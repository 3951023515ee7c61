"""The answers of a job on the cluster: what a sweep needs there, and the files of its results."""

from __future__ import annotations

import traceback
from pathlib import Path, PurePosixPath
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import locked, read_bytes, read_text
from hpxfer.jobs.request import Request, where
from hpxfer.store.location import location_at

JOBS_FILE = "jobs.txt"
# The most that a log can carry: Ray reads a job's log whole and sends it through three servers.
MAX_FETCH_BYTES = 256 * 2**20
_STORE_FILES = ("sweep.yaml", "sweep-*.yaml", "trials*.parquet", "curves*.parquet")


def answer(request: Request, sweep: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the data and the files that answer a request. An error is an answer too: `error` in the data says it."""
    try:
        match request.action:
            case "check":
                from hpxfer.jobs.check import check

                return check(request, sweep), {}
            case _:
                return {}, files_of(location_at(where(request.root), request.name).folder)
    except HpxferError as error:
        return {"error": str(error)}, {}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}, {}


def leave_mark(folder: Path, job: str) -> None:
    """Write the job's id into its results folder. A machine that finds the id there sees the same folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / JOBS_FILE, "a", encoding="utf-8") as file:
            file.write(f"{job}\n")
    except OSError as error:
        raise HpxferError(f"{folder}: cannot be written: {error.strerror}; name another with --results") from None


def has_mark(folder: Path, job: str) -> bool:
    """Return whether a folder is the results folder of a job, and not another of that name on another machine."""
    try:
        return job in read_text(folder / JOBS_FILE).split()
    except (OSError, ValueError):
        return False


def is_store_file(name: str) -> bool:
    """Return whether a file that a job sent may be a file of a store. A name with a path in it never is."""
    return any(PurePosixPath(name).match(pattern) for pattern in _STORE_FILES) and "/" not in name


def files_of(folder: Path) -> dict[str, bytes]:
    """Return name -> content of the store's files in a results folder, as they are at one moment. It may have none."""
    with locked(folder, exclusive=False):
        found = [path for pattern in _STORE_FILES for path in sorted(folder.glob(pattern))]
        size = sum(path.stat().st_size for path in found)
        if size > MAX_FETCH_BYTES:
            raise HpxferError(
                f"{folder}: holds {size / 2**20:.0f} MiB, and a job's log carries at most "
                f"{MAX_FETCH_BYTES / 2**20:.0f}; copy the folder itself, or submit with --results on a shared folder "
                "or a storage URI"
            )
        return {path.name: read_bytes(path, MAX_FETCH_BYTES) for path in found}
