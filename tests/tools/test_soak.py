"""A short soak of each executor, and the checks of a soak on results that were spoiled.

The long one: python tests/tools/soak.py --kills 30 [--executor ray]
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from soak import run_undisturbed, soak
from soak_checks import RESUMED, History, checks, history_of
from soak_sweeps import ANY_TRAINER

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


def first_row(folder: Path, name: str, **values: object) -> None:
    """Give the first row of a table of a folder these values, or drop its trial if there are none."""
    table = pq.read_table(folder / name)
    for column, value in values.items():
        at, field = table.schema.get_field_index(column), table.schema.field(column)
        table = table.set_column(at, field, pa.array([value, *table[column].to_pylist()[1:]], field.type))
    pq.write_table(table if values else table.slice(1), folder / name)


TRIALS = "trials.parquet"
SPOILED: dict[str, Callable[[Path], object]] = {
    "every trial is stored exactly once": lambda folder: first_row(folder, TRIALS),
    "no done trial was lost": lambda folder: first_row(folder, TRIALS),
    "no done trial was trained again": lambda folder: first_row(folder, TRIALS, finished_at="2026-01-01T00:00:00"),
    "a further run had nothing to do": lambda folder: first_row(folder, TRIALS, finished_at="2026-01-01T00:00:00"),
    "numbers are those of an undisturbed run": lambda folder: first_row(folder, TRIALS, validation_loss_nats=3.0),
    "curves are those of an undisturbed run": lambda folder: first_row(folder, "curves.parquet", value=3.0),
    "nothing else is left in the results": lambda folder: (folder / "trials-000001.parquet.7.tmp").write_text("half"),
}


def test_a_soak_sees_what_is_wrong_and_passes_what_was_left_alone(nothing_killed: Path, tmp_path: Path) -> None:
    """No trial of this run went on from a checkpoint, so that check alone always fails."""
    for name, spoil in {"": lambda folder: None, **SPOILED}.items():
        folder, history = tmp_path / (name or "left alone"), History()
        shutil.copytree(nothing_killed, folder)
        history.add(folder)
        before = history_of(folder)
        spoil(folder)
        history.add(folder)
        failed = {check.name for check in checks(nothing_killed, folder, history, before) if not check.ok}
        assert {RESUMED, name} - {""} <= failed, name
        assert name or failed == {RESUMED}
