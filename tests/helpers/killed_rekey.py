"""Kill `hpxfer rekey` at its first file operation, then at its second, and so on; check the folder after each.

Usage: killed_rekey.py LEGACY_FOLDER WORK_FOLDER [NAME]. With NAME, ids are written into a new folder of this name.
Prints how many operations there were. After each kill the folder must read as before, and the same command must end
with the same results as one that nobody killed. A kill that leaves the files of the kill before, as one at a flush
does, is not checked again.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from legacy_results import files, ids_in_files, seen

import hpxfer.driver  # noqa: F401 - part of it is read with results, and every child would import that anew
from hpxfer.rekey import holds_legacy_ids, rekey
from hpxfer.rekey.write import BACKUP
from hpxfer.storage.lease_file import LEASE_FILE
from hpxfer.store.location import location_at

OPERATIONS = ((os, "replace"), (os, "unlink"), (os, "rmdir"), (os, "mkdir"), (os, "fsync"), (shutil, "copyfile"))


def kill_at(number: int) -> None:
    """Make this process kill itself before operation `number`, and cut a copy in half."""
    left = number

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if real.__name__ == "copyfile":
                    content = Path(arguments[0]).read_bytes()
                    Path(arguments[1]).write_bytes(content[: len(content) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return None if real.__name__ == "fsync" else real(*arguments, **options)  # only a power cut would need it

        return operation

    for owner, name in OPERATIONS:
        setattr(owner, name, counted(getattr(owner, name)))


def in_child(action: Callable[[], object]) -> int:
    """Return the wait status of a process of its own that does it: a fork, as imports take longer than all else."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            sys.stderr.flush()
            os._exit(1)
    return os.waitpid(child, 0)[1]


def main(legacy: Path, work: Path, name: str) -> int:
    """Return how many operations a whole rekey takes."""
    folder, target = work / "small", work / name if name else None
    whole, number = legacy.with_name("whole.txt"), 0
    before: dict[str, object] = {}
    assert in_child(lambda: whole.write_text(repr(seen(legacy)))) == 0
    while True:
        number += 1
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(legacy, folder)

        def cut(number: int = number) -> None:
            kill_at(number)
            rekey(folder, target)

        status = in_child(cut)
        assert os.WIFSIGNALED(status) or status == 0, "the command failed"
        found = left_by_kill(work)
        if found != before or status == 0:
            assert in_child(lambda: check(legacy, whole.read_text(), folder, target)) == 0, f"kill {number}"
        before = found
        if status == 0:
            return number - 1


def left_by_kill(work: Path) -> dict[str, object]:
    """Return path -> content of all that a kill has left. Only what names the dead process is left out."""
    found: dict[str, object] = {}
    for path in work.rglob("*"):
        name = re.sub(r"\.\d+(\.[0-9a-f]{8})?\.tmp$", ".tmp", str(path.relative_to(work)))
        is_lease = path.name.startswith(LEASE_FILE)
        found[name] = None if path.is_dir() else path.stat().st_size if is_lease else path.read_bytes()
    return found


def check(legacy: Path, whole: str, folder: Path, target: Path | None) -> None:
    """Check a folder after a kill against `whole`, all that is read of it; go on, and check again."""
    assert repr(seen(folder)) == whole, "what is read after the kill"
    rekey(folder, target)
    found = folder if target is None else target
    assert repr(seen(found)) == whole, "what is read at the end"
    assert not ids_in_files(found) & ids_in_files(legacy), "legacy ids are left"
    assert len(list((found / "checkpoints").glob("*.safetensors"))) == 1, "checkpoints"
    assert not holds_legacy_ids(location_at(found)), "something is left to do"
    left = [path for path in (*folder.parent.iterdir(), *found.iterdir()) if path.name.endswith((".rekey", ".tmp"))]
    assert not left, f"half-written files: {left}"
    kept = files(folder if target is not None else folder / BACKUP)
    old = files(legacy)
    for name, content in old.items():
        if name != "sweep.yaml":
            assert kept[name if target is not None else Path(name).name] == content, f"{name} is not kept"


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])}\n")
