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
from hpxfer.jobs.answers import answer, leave_mark
from hpxfer.jobs.request import VARIABLE, Request, answer_lines, unpacked, where
from hpxfer.jobs.travel import with_plugins, with_trainer_files
from hpxfer.storage.uri import parse_root


def main() -> None:
    """Do what the request asks. The exit code is the job's."""
    try:
        request, sweep = unpacked(os.environ.pop(VARIABLE, ""))
        with tempfile.TemporaryDirectory(prefix="hpxfer-job-", ignore_cleanup_errors=True) as scratch:
            path = Path(scratch, "sweep.yaml")
            if request.plugins:
                sweep = with_plugins(sweep, dict(request.plugins))
            if request.files:  # a check leaves nothing on the cluster
                root = where(request.root) if request.action == "run" else scratch
                sweep = with_trainer_files(sweep, request.files, root, request.name)
            path.write_text(sweep, encoding="utf-8")
            if request.action == "run":
                _run(request, path)
                return
            data, files = answer(request, path)
    except HpxferError as error:
        print(f"hpxfer: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    for line in answer_lines(request.nonce, data, files):
        print(line)  # noqa: T201 - the log carries the answer home


def _run(request: Request, sweep: Path) -> None:
    """Train the missing trials of the sweep, as `hpxfer run` does."""
    from hpxfer.cli import main as hpxfer

    root = where(request.root)
    if isinstance(found := parse_root(root), Path):
        leave_mark(found / request.name, request.job)
    reuse = [f"--reuse={where(folder)}" for folder in request.reuse]
    memory = [] if request.strict_memory else ["--no-strict-memory"]
    code = ["--strict-code"] if request.strict_code else []
    options = [f"--results={root}", *reuse, *memory, *code, "--address=auto", "--yes"]
    sys.argv = ["hpxfer", "run", str(sweep), *options]
    hpxfer()


if __name__ == "__main__":
    main()
