"""The program of every job on the cluster: `python -m hpxfer.cli.job_entry`, which `hpxfer submit` names to Ray.

It takes everything from the request that travelled with the job (`hpxfer.jobs.request`) and nothing from its command
line. A run is `hpxfer run` in this process, with the same output, exit codes and answer to SIGTERM.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.host import parse_root
from hpxfer.jobs.answers import answer, leave_mark
from hpxfer.jobs.request import VARIABLE, Request, answer_line, unpacked, where
from hpxfer.jobs.travel import arrived


def main() -> None:
    """Do what the request asks. The exit code is the job's."""
    try:
        request = unpacked(os.environ.pop(VARIABLE, ""))
        with tempfile.TemporaryDirectory(prefix="hpxfer-job-", ignore_cleanup_errors=True) as scratch:
            path, sweep = Path(scratch, "sweep.yaml"), request.sweep
            if request.files:  # a check leaves nothing on the cluster
                sweep = arrived(sweep, request.files, request.where if request.action == "run" else scratch)
            path.write_text(sweep, encoding="utf-8")
            if request.action == "run":
                _run(request, path)
                return
            data, files = answer(request, path)
    except HpxferError as error:
        print(f"hpxfer: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    print(answer_line(request.nonce, data, files))  # noqa: T201 - the log carries the answer home


def _run(request: Request, sweep: Path) -> None:
    """Train the missing trials of the sweep, as `hpxfer run` does."""
    from hpxfer.cli import main as hpxfer

    if isinstance(found := parse_root(request.where), Path):
        leave_mark(found / request.name, request.job)
    reuse = [f"--reuse={where(folder)}" for folder in request.reuse]
    memory = [] if request.strict_memory else ["--no-strict-memory"]
    code = ["--strict-code"] if request.strict_code else []
    options = [f"--results={request.where}", *reuse, *memory, *code, "--address=auto", "--yes"]
    sys.argv = ["hpxfer", "run", str(sweep), *options]
    hpxfer()


if __name__ == "__main__":
    main()
