"""A driver that was suspended until another took its folder over, and then goes on: it writes nothing any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny import write_tiny

from hpxfer.errors import HpxferError
from hpxfer.host import files
from hpxfer.storage.lease import leased
from hpxfer.storage.lease_file import LeaseFile

pytestmark = pytest.mark.slow

SEARCH = ("seeds: 2", "seeds: 2\nsearch: {kind: optuna, budget: 12, batch: 2}")
CHECKPOINTS = ("workers: 2", "workers: 2, stack_size: 5, checkpoint_s: 1")
# A driver in a process of its own, which stops itself at an act of its run. What it would write next is what counts.
SUSPENDED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from driver_cases import Made
from hpxfer.driver import run
from hpxfer.progress import file as progress
from hpxfer.errors import HpxferError
from hpxfer.search.export import StudyExport
from hpxfer.store import Store
from hpxfer.train.checkpoints import Checkpoints

progress.EVERY_S = 0.01
sweep, act = Path(sys.argv[1]), sys.argv[2]
seen = []

def stop():
    if not seen:
        seen.append(True)
        os.kill(os.getpid(), signal.SIGSTOP)

def stopping(owner, name):
    plain = getattr(owner, name)
    def stopped(*args, **options):
        stop()
        return plain(*args, **options)
    setattr(owner, name, stopped)

def on_event(stack, event, counts):
    if act == "event":
        stop()
    elif act == "interrupt":
        stop()
        raise KeyboardInterrupt
    elif act == "append":
        stopping(Store, "append")
    elif act == "export":
        stopping(StudyExport, "_write")
    elif act == "clear":
        stopping(Checkpoints, "clear")
    elif act == "compact":
        stopping(Store, "compact")
    elif act == "end":
        stopping(Checkpoints, "end")

try:
    run(sweep, results=sweep.parent, executor=Made(), on_event=on_event)
    print("ended")
except HpxferError as error:
    print("lost:", error)
except KeyboardInterrupt:
    print("interrupted")
"""


def written(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return name -> inode and content of every file of a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.read_bytes()) for path in files}


@contextmanager
def suspended(sweep: Path, act: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a driver that has stopped itself at an act, and end it."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")]
    command = [sys.executable, "-c", SUSPENDED, str(sweep), act, *paths]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert os.WIFSTOPPED(os.waitpid(driver.pid, os.WUNTRACED)[1]), driver.communicate()
        yield driver
    finally:
        driver.send_signal(signal.SIGCONT)
        driver.kill()
        driver.communicate()


@pytest.mark.parametrize(
    ("act", "edit"),
    [
        ("event", CHECKPOINTS),
        ("interrupt", CHECKPOINTS),
        ("append", CHECKPOINTS),
        ("compact", CHECKPOINTS),
        ("event", SEARCH),
    ],
)
def test_a_driver_that_lost_its_lease_writes_nothing(act: str, edit: tuple[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    with suspended(write_tiny(tmp_path, edit), act) as first:
        with leased(LeaseFile(folder), str(folder), bump_s=3600.0, stale_s=0.0, sleep=lambda _: None) as second:
            before = written(folder)
            first.send_signal(signal.SIGCONT)
            outcome, error = first.communicate(timeout=120)
            after = written(folder)
            second.check()
        assert outcome.startswith("interrupted" if act == "interrupt" else "lost: "), outcome + error
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert not changed


@pytest.mark.parametrize(("act", "edit"), [("clear", CHECKPOINTS), ("end", CHECKPOINTS), ("export", SEARCH)])
def test_nobody_takes_a_folder_over_while_its_driver_is_suspended_within_a_write(
    act: str, edit: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.1)
    folder = tmp_path / "tiny"
    with suspended(write_tiny(tmp_path, edit), act) as first:
        with (
            pytest.raises(HpxferError, match="resume that process if it was suspended, or end it"),
            leased(LeaseFile(folder), str(folder), stale_s=0.0, sleep=lambda _: None),
        ):
            raise AssertionError("two drivers")
        first.send_signal(signal.SIGCONT)
        assert first.communicate(timeout=120)[0] == "ended\n"
