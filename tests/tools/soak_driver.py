"""The driver of a soak: `hpxfer`, which kills itself at a moment of a write to the store.

    python tests/tools/soak_driver.py MOMENT PATIENCE_S run soak.yaml --results ...

MOMENT is a file. If it holds e.g. `append 3`, this process ends by kill -9 after the third step of the next append, and
the file is gone. The steps of a write are: each temporary file is on the disk, each one gets its name, each file that
was merged is removed. PATIENCE_S is how long the driver waits for a lost head of its cluster; 0 is what users have.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpxfer.store import Store

APPEND, COMPACTION = "append", "compaction"
# A part is two files: two are written, then two are named. A merge of two parts or more removes at least four.
MOMENTS = {APPEND: 4, COMPACTION: 8}


def main() -> None:
    """Run hpxfer with the arguments that are left."""
    moment, patience_s = Path(sys.argv.pop(1)), float(sys.argv.pop(1))
    writes = _Writes(moment)
    Store.append = writes.counted(APPEND, Store.append)  # type: ignore[method-assign]
    Store.compact = writes.counted(COMPACTION, Store.compact)  # type: ignore[method-assign]
    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, writes.stepped(getattr(os, name)))
    if patience_s:
        from hpxfer.executors.ray_session import ClusterMonitor

        ClusterMonitor.PATIENCE_S = patience_s
    from hpxfer.cli import main as hpxfer

    hpxfer()


class _Writes:
    """Counts the steps of the write that is under way, and ends the process after the one that the file names."""

    def __init__(self, moment: Path) -> None:
        self._moment, self._kind, self._step = moment, "", 0

    def counted(self, kind: str, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return a write of the store whose steps are counted."""

        def act(*args: Any, **options: Any) -> Any:
            self._kind, self._step = kind, 0
            try:
                return write(*args, **options)
            finally:
                self._kind = ""

        return act

    def stepped(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step after which this process may end. Another thread's steps outside of a write are not counted."""

        def act(*args: Any, **options: Any) -> Any:
            out = step(*args, **options)
            path = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else str(args[0])
            # progress.json and the lease are written by other threads meanwhile
            if self._kind and "json" not in path and not os.path.isdir(path):
                self._step += 1
                with suppress(FileNotFoundError):
                    if self._moment.read_text(encoding="utf-8") == f"{self._kind} {self._step}":
                        os.remove(self._moment)
                        os.kill(os.getpid(), signal.SIGKILL)
            return out

        return act


if __name__ == "__main__":
    main()
