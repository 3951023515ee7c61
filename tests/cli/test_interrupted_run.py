"""`hpxfer run` that a signal ends long before its first checkpoint is due keeps what its workers have done."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest
from command_line import started
from tiny import write_tiny
from waiting import LONG_S, until

from hpxfer.errors import HpxferError
from hpxfer.progress.status import read
from hpxfer.storage.lease import LEASE_FILE
from hpxfer.train.checkpoints import Checkpoints

pytestmark = pytest.mark.slow

STEPS = 15000


def has_begun(folder: Path) -> bool:
    """Return whether a stack has taken a step."""
    try:
        found = read(folder)
    except HpxferError:
        return False
    return found is not None and any(stack.step for stack in found.progress.running)


@pytest.mark.parametrize(("executor", "number", "code"), [("local", signal.SIGINT, 130), ("ray", signal.SIGTERM, 143)])
def test_a_signal_keeps_the_steps_of_the_running_trials(
    executor: str, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    sweep = write_tiny(tmp_path, ("steps: 6", f"steps: {STEPS}"), ("workers: 2", "workers: 1, stack_size: 2"))
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--results", str(tmp_path)]
    process = started([*command, "--executor", executor])
    folder = tmp_path / "tiny"
    until(lambda: has_begun(folder) or process.poll() is not None, "no stack has begun")
    assert process.poll() is None, process.communicate()
    process.send_signal(number)
    _, err = process.communicate(timeout=LONG_S)
    assert process.returncode == code, err
    assert "Traceback" not in err
    (found,) = Checkpoints(folder / "checkpoints").usable()
    told = re.search(r"interrupted; 2 trials stopped at step (\d+) of (\d+); all results are in", err)
    assert told is not None, err
    assert (int(told[1]), int(told[2])) == (found.step, STEPS)
    assert 0 < found.step < STEPS
    assert "the same command goes on from there" in err
    assert {path.name for path in folder.iterdir()} == {"sweep.yaml", "progress.json", "checkpoints"}
    assert not (folder / LEASE_FILE).exists()
