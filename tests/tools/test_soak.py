"""A short soak of each executor, and the checks of a soak on results that were spoiled.

The long one: python tests/tools/soak.py --kills 30 [--executor ray]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from soak import run_undisturbed, soak
from soak_checks import History, checks, history_of
from soak_processes import ROLE, TOKEN, kill, processes, wait_until
from soak_sweeps import ANY_TRAINER
from tiny import write_tiny

from hpxfer.driver import run

pytestmark = pytest.mark.slow

STEPS = 100


@pytest.fixture(scope="module")
def nothing_killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of the soaks' sweep."""
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed"), STEPS)


@pytest.mark.parametrize(
    ("executor", "kills", "seed", "kinds"),
    [
        # No more kills than it takes to have each kind once, beside those after a checkpoint.
        ("local", 7, 9, ("worker", "driver", "append", "compaction", "interrupt")),
        ("ray", 5, 22, ("worker", "node", "head", "compaction")),
    ],
)
def test_whatever_is_killed_each_trial_is_trained_once_with_the_same_numbers(
    executor: str, kills: int, seed: int, kinds: tuple[str, ...], tmp_path: Path, nothing_killed: Path
) -> None:
    report = soak(
        tmp_path / "soak",
        kills=kills,
        seed=seed,
        executor=executor,
        steps=STEPS,
        undisturbed=nothing_killed,
        kinds=kinds,
        patience_s=1.0,
    )
    assert report.ok, str(report)
    assert report.kills.total() == kills
    assert set(report.kills) == {"all workers", *kinds}, str(report)


def test_a_trainer_of_ones_own_is_killed_with_its_ranks_and_supervisors(tmp_path: Path) -> None:
    kinds = ("worker and supervisor", "rank", "supervisor")
    report = soak(tmp_path / "soak", kills=4, seed=2, steps=40, kinds=kinds, sweep=ANY_TRAINER)
    assert report.ok, str(report)
    assert set(report.kills) == {"all workers", *kinds}, str(report)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of a sweep."""
    folder = tmp_path_factory.mktemp("sound")
    run(write_tiny(folder), results=folder)
    return folder / "tiny"


def rewritten(name: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    """Return what changes a table of a folder."""

    def spoil(folder: Path) -> None:
        table = pq.read_table(folder / name)
        pq.write_table(change(table), folder / name)

    return spoil


def with_first(name: str, value: object) -> Callable[[pa.Table], pa.Table]:
    """Return what changes the first row of a column."""

    def change(table: pa.Table) -> pa.Table:
        field = table.schema.field(name)
        values = [value, *table[name].to_pylist()[1:]]
        return table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))

    return change


def drop_first_trial(folder: Path) -> None:
    for name in ("trials.parquet", "curves.parquet"):
        table = pq.read_table(folder / name)
        ids = table["trial_id"].cast(pa.string())
        first = pq.read_table(folder / "trials.parquet")["trial_id"][0] if name == "trials.parquet" else ids[0]
        pq.write_table(table.filter(pc.not_equal(ids, first)), folder / name)


SPOILED: dict[str, Callable[[Path], object]] = {
    "every trial is stored exactly once": drop_first_trial,
    "no done trial was lost": drop_first_trial,
    "no done trial was trained again": rewritten("trials.parquet", with_first("finished_at", "2026-01-01T00:00:00")),
    "a further run had nothing to do": rewritten("trials.parquet", with_first("finished_at", "2026-01-01T00:00:00")),
    "numbers are those of an undisturbed run": rewritten("trials.parquet", with_first("validation_loss_nats", 3.0)),
    "curves are those of an undisturbed run": rewritten("curves.parquet", with_first("value", 3.0)),
    "some went on from a checkpoint": lambda folder: None,  # none of this run did
    "nothing else is left in the results": lambda folder: (folder / "trials-000001.parquet.7.tmp").write_text("half"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_soak_sees_what_is_wrong(name: str, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(undisturbed, folder)
    history = History()
    history.add(folder)
    before = history_of(folder)
    SPOILED[name](folder)
    history.add(folder)
    found = {check.name: check for check in checks(undisturbed, folder, history, before)}
    assert set(found) == set(SPOILED)
    assert not found[name].ok, found[name].found


def test_a_folder_that_was_left_alone_passes_all_checks(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(undisturbed, folder)
    rewritten("trials.parquet", with_first("resumes", 1))(folder)
    history = History()
    history.add(folder)
    assert [check.name for check in checks(undisturbed, folder, history, history_of(folder)) if not check.ok] == []


def test_processes_are_known_by_their_environment(tmp_path: Path) -> None:
    token = f"test {os.getpid()}"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, TOKEN: owner, ROLE: "node"}
        )
        for owner in (token, "another's")
    ]
    try:
        assert wait_until(lambda: [process.pid for process in processes(token)] == [started[0].pid], 60.0)
        (found,) = processes(token)
        assert (found.role, found.trains) == ("node", False)
        kill([found.pid])
        started[0].wait(60)
        kill([found.pid])  # who has gone already has
        assert processes(token) == []
        assert started[1].poll() is None
    finally:
        for process in started:
            process.kill()
            process.communicate()
