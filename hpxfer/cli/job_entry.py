"""What runs on the cluster for `hpxfer submit|status|fetch`: `python -m hpxfer.cli.job_entry` in a Ray job.

It takes everything from what travelled with the job (`job_request`), nothing from its command line. A run is `hpxfer
run` itself, in this process: the same output, exit codes and answer to SIGTERM.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path, PurePosixPath
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import locked
from hpxfer.jobs.request import VARIABLE, Request, answer_lines, unpacked
from hpxfer.storage.uri import parse_root
from hpxfer.store.location import open_place

JOBS_FILE = "jobs.txt"
# What a log can carry: a job's log is read whole, and goes through three servers.
MAX_FETCH_BYTES = 256 * 2**20
_STORE_FILES = ("sweep.yaml", "sweep-*.yaml", "trials*.parquet", "curves*.parquet")


def main() -> None:
    """Do what the request asks that travelled with this job; the exit code is the job's."""
    try:
        request, sweep = unpacked(os.environ.pop(VARIABLE, ""))
        with tempfile.TemporaryDirectory(prefix="hpxfer-job-", ignore_cleanup_errors=True) as scratch:
            path = Path(scratch, "sweep.yaml")
            path.write_text(sweep, encoding="utf-8")
            if request.action == "run":
                _run(request, path)
                return
            data, files = _answer(request, path)
    except HpxferError as error:
        _refuse(error)
    for line in answer_lines(request.nonce, data, files):
        print(line)  # noqa: T201 - the log is the way home


def _refuse(error: HpxferError) -> None:
    print(f"hpxfer: {error}", file=sys.stderr)  # noqa: T201
    sys.exit(2)


def _run(request: Request, sweep: Path) -> None:
    """Train what is missing of the sweep, as `hpxfer run` does."""
    from hpxfer.cli import main as hpxfer

    root = where(request.root)
    if isinstance(found := parse_root(root), Path):
        _leave_mark(found / request.name, request.job)
    reuse = [f"--reuse={where(one)}" for one in request.reuse]
    sys.argv = ["hpxfer", "run", str(sweep), f"--results={root}", *reuse, "--address=auto", "--yes"]
    hpxfer()


def _answer(request: Request, sweep: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the answer of an action that is asked for; what goes wrong is an answer too."""
    try:
        match request.action:
            case "check":
                from hpxfer.jobs.check import check

                return check(request, sweep), {}
            case "progress":
                return progress(open_place(where(request.root), request.name).folder), {}
            case _:
                return {}, files_of(open_place(where(request.root), request.name).folder)
    except HpxferError as error:
        return {"error": str(error)}, {}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}, {}


def where(root: str) -> str:
    """Return a results root as this machine spells it: `~` is the home of whoever started Ray here."""
    return root if "://" in root else os.path.expanduser(root)


def _leave_mark(folder: Path, job: str) -> None:
    """Note the job in its results folder: whoever finds its id there sees the same folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / JOBS_FILE, "a", encoding="utf-8") as file:
            file.write(f"{job}\n")
    except OSError as error:
        raise HpxferError(f"{folder}: cannot be written: {error.strerror}; name another with --results") from None


def has_mark(folder: Path, job: str) -> bool:
    """Return whether a folder is the results folder of a job, and not another of that name on another machine."""
    try:
        return job in (folder / JOBS_FILE).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return False


def progress(folder: Path) -> dict[str, Any]:
    """Return how far the run in a results folder is: its state and snapshot; nothing of a run that has not begun."""
    from hpxfer.progress.file import read

    written = read(folder)
    return {} if written is None else {"state": written.state, "progress": written.snapshot.to_dict()}


def is_store_file(name: str) -> bool:
    """Return whether a file that was sent may be one of a store: its name is no path."""
    return any(PurePosixPath(name).match(pattern) for pattern in _STORE_FILES) and "/" not in name


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the store's files in a results folder by name, as they are at one moment."""
    with locked(folder, exclusive=False):
        found = [path for pattern in _STORE_FILES for path in sorted(folder.glob(pattern))]
        size = sum(path.stat().st_size for path in found)
        if size > MAX_FETCH_BYTES:
            raise HpxferError(
                f"{folder}: holds {size / 2**20:.0f} MiB, a job's log carries at most {MAX_FETCH_BYTES / 2**20:.0f}; "
                f"copy the folder itself, or submit with --results on a shared folder or a storage URI"
            )
        if not found:
            raise HpxferError(f"{folder}: has no results yet; ask `hpxfer status`")
        return {path.name: path.read_bytes() for path in found}


if __name__ == "__main__":
    main()
