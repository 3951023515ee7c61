"""What an interrupted, suspended or damaged run keeps, and what it writes no more."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixture_types import Folders, Patch
from made_executors import InProcess
from made_results import stored
from tiny import write_tiny
from tiny_trials import SETTING, trial

from hpxfer.driver import TrainingFailed, prepare, run
from hpxfer.driver.drive import kept_text
from hpxfer.errors import HpxferError
from hpxfer.host import files
from hpxfer.host.interrupts import Interrupted
from hpxfer.results import load_results
from hpxfer.storage.lease import LeaseFile, leased
from hpxfer.train.checkpoints import Checkpoints
from hpxfer.trial.events import Progress, Started

NUMBERS = ["trial_id", "status", "validation_loss_nats", "final_window_loss_nats"]
# One stack of two trials, which takes a few seconds. Workers report progress every second.
SHORT = (
    ("steps: 6", "steps: 2000"),
    ("width: [16, 32]", "width: [16]"),
    ("log2: [-8, -4]", "values: [0.01]"),
    ("completep-moe, sp", "sp"),
)


@pytest.mark.slow
@pytest.mark.parametrize("end", [Interrupted(2), TrainingFailed("a bug in another stack", 1)])
def test_a_stack_that_was_running_leaves_a_checkpoint(end: BaseException, tmp_path: Path) -> None:
    def stop(stack: object, event: object, counts: object) -> None:
        if isinstance(event, Progress):
            raise end

    sweep = write_tiny(tmp_path, *SHORT)
    with pytest.raises(type(end)) as error:
        run(sweep, results=tmp_path, on_event=stop)
    (found,) = Checkpoints(tmp_path / "tiny" / "checkpoints").usable()
    assert 0 < found.step < 2000
    assert error.value.__notes__ == [f"2 trials stopped at step {found.step} of 2000"]
    if isinstance(end, TrainingFailed):
        return
    after = run(sweep, results=tmp_path)  # goes on there
    assert set(after.trials["resumes"]) == {1}
    straight = run(sweep, results=tmp_path / "straight", executor=InProcess())
    pd.testing.assert_frame_equal(after.trials[NUMBERS], straight.trials[NUMBERS])
    assert not (tmp_path / "tiny" / "checkpoints").exists()


@pytest.mark.slow
def test_without_checkpoints_the_run_says_what_starts_over(tmp_path: Path) -> None:
    def stop(stack: object, event: object, counts: object) -> None:
        if isinstance(event, Started):
            raise KeyboardInterrupt

    sweep = write_tiny(tmp_path, *SHORT, ("workers: 2", "workers: 2, checkpoint_s: 0"))
    with pytest.raises(KeyboardInterrupt) as error:
        run(sweep, results=tmp_path, on_event=stop)
    assert error.value.__notes__ == ["2 trials without a checkpoint start over"]
    assert not (tmp_path / "tiny" / "checkpoints").exists()


def test_what_is_kept_in_words() -> None:
    trials = [trial(SETTING, seed=seed) for seed in range(4)]
    steps = {one.id: step for one, step in zip(trials, (5, 4, 2), strict=False)}
    assert kept_text([], steps) is None
    assert kept_text(trials[:1], steps) == "1 trial stopped at step 5 of 6"
    assert kept_text(trials, steps) == "3 trials stopped at step 2 to 5 of 6, 1 trial without a checkpoint starts over"


FEW = (
    ("width: [16, 32]", "width: [16]"),
    ("parameterizations: [completep-moe, sp]", "parameterizations: [sp]"),
    ("workers: 2", "workers: 1"),  # each is a process that imports torch
)


@pytest.fixture(scope="module")
def done(tmp_path_factory: Folders) -> Path:
    folder = tmp_path_factory.mktemp("done")
    run(write_tiny(folder, *FEW), results=folder)
    return folder


@pytest.fixture
def folder(done: Path, tmp_path: Path) -> Path:
    """The folder of a finished sweep of one shape: tiny.yaml, and its results in `tiny`."""
    return Path(shutil.copytree(done, tmp_path / "x"))


@pytest.mark.first
@pytest.mark.parametrize("how", ["cut off", "gone"])
def test_lost_curves_come_back_and_the_results_stay(folder: Path, how: str) -> None:
    tiny, path = folder / "tiny", folder / "tiny" / "curves.parquet"
    losses, curves = load_results(tiny).trials.set_index("trial_id")["validation_loss_nats"], stored(tiny)[1]
    path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:-100])
    ready = prepare(folder / "tiny.yaml", results=folder)
    assert (len(ready.missing), ready.plan.num_done) == (len(losses), 0)
    lost = f"{tiny}: {len(losses)} trials have lost their curves; a run trains them again"
    assert lost in ready.problems
    assert lost in load_results(tiny).problems
    assert prepare(folder / "tiny.yaml", results=folder, overrides=["resources.curves=none"]).missing == ()
    assert len(prepare(folder / "tiny.yaml", results=folder / "new", reuse=[tiny]).missing) == len(losses)
    found = run(folder / "tiny.yaml", results=folder)
    assert found.trials.set_index("trial_id")["validation_loss_nats"].equals(losses)
    assert stored(tiny)[1] == curves
    assert lost not in found.problems
    assert prepare(folder / "tiny.yaml", results=folder).missing == ()


@pytest.mark.slow
def test_another_result_is_refused(folder: Path) -> None:
    tiny, path = folder / "tiny", folder / "tiny" / "trials.parquet"
    (tiny / "curves.parquet").unlink()
    table = pq.read_table(path)
    at = table.column_names.index("validation_loss_nats")
    losses = [loss + 2.0**-40 for loss in table.column(at).to_pylist()]
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(losses)), path, compression="zstd")
    with pytest.raises(HpxferError, match="it must come out as stored, finished with validation_loss_nats"):
        run(folder / "tiny.yaml", results=folder)
    assert load_results(tiny).trials["validation_loss_nats"].tolist() == losses


SEARCH = ("seeds: 2", "seeds: 2\nsearch: {kind: optuna, budget: 12, batch: 2}")
CHECKPOINTS = ("workers: 2", "workers: 2, stack_size: 5, checkpoint_s: 1")
# A driver in a process of its own, which stops itself at an act of its run. What it would write next is what counts.
SUSPENDED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from made_executors import Made
from hpxfer.driver import run
from hpxfer.progress import counts as progress
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
    if act in ("event", "interrupt"):
        stop()
    if act == "interrupt":
        raise KeyboardInterrupt
    owners = {"append": Store, "compact": Store, "_write": StudyExport, "clear": Checkpoints, "end": Checkpoints}
    if act in owners:
        stopping(owners[act], act)

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "edit"), [*((act, CHECKPOINTS) for act in ("event", "interrupt", "append", "compact")), ("event", SEARCH)]
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


@pytest.mark.slow
@pytest.mark.parametrize(("act", "edit"), [("clear", CHECKPOINTS), ("end", CHECKPOINTS), ("_write", SEARCH)])
def test_nobody_takes_a_folder_over_while_its_driver_is_suspended_within_a_write(
    act: str, edit: tuple[str, str], tmp_path: Path, monkeypatch: Patch
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
