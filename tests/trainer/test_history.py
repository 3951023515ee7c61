"""History: what several attempts have reported together."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hpxfer.trainer.history import Reported, merged, newest_checkpoint, reached, read_earlier
from hpxfer.trainer.lines import Checkpoint, Groups, Point

STEPS = st.sets(st.integers(0, 20)).map(sorted)


@given(st.lists(STEPS, max_size=5))
def test_a_later_attempt_wins_from_its_first_step_on(attempts: list[list[int]]) -> None:
    told = [
        Reported(number, points=[Point(step, float(number), {}) for step in steps])
        for number, steps in enumerate(attempts)
    ]
    points = merged(told)
    assert [point.step for point in points] == sorted({point.step for point in points})
    # By steps instead of by attempts: a step is that of the last attempt that has it, unless a later one began before.
    for step in range(21):
        having = [number for number, steps in enumerate(attempts) if step in steps]
        began = [number for number, steps in enumerate(attempts) if steps and steps[0] <= step]
        expected = [having[-1]] if having and having[-1] == began[-1] else []
        assert [point.loss for point in points if point.step == step] == expected


def test_the_newest_checkpoint_that_exists(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    told = [
        Reported(1, checkpoints=[Checkpoint(1, "a"), Checkpoint(2, str(tmp_path / "b")), Checkpoint(3, "gone")]),
        Reported(2, checkpoints=[Checkpoint(1, "a")]),
    ]
    assert newest_checkpoint(tmp_path, told) == (2, str(tmp_path / "b"))
    assert newest_checkpoint(tmp_path, told[1:]) == (1, str(tmp_path / "a"))
    assert newest_checkpoint(tmp_path, []) is None


def test_of_two_checkpoints_of_a_step_the_later_counts(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    told = [Reported(1, checkpoints=[Checkpoint(1, "a")]), Reported(2, checkpoints=[Checkpoint(1, "b")])]
    assert newest_checkpoint(tmp_path, told) == (1, str(tmp_path / "b"))


def test_receipts_do_not_fill_the_memory() -> None:
    told = Reported(1)
    for step in range(1000):
        told.add(Groups(step, ()))
    assert len(told.groups) < 100


def test_earlier_attempts_are_read_up_to_their_first_bad_line(tmp_path: Path) -> None:
    lines = [{"type": "report", "step": step, "loss": 1.0} for step in range(3)]
    texts = {
        1: "\n".join(map(json.dumps, lines)) + '\n{"torn',
        2: json.dumps(lines[0]) + "\nbad\n" + json.dumps(lines[1]),
    }
    for number, text in {**texts, 10: texts[1], 11: texts[1]}.items():
        (tmp_path / f"attempt-{number}").mkdir()
        (tmp_path / f"attempt-{number}" / "reports.jsonl").write_text(text)
    (tmp_path / "attempt-x").mkdir()
    told = read_earlier(tmp_path, 11, trial_id="t1", steps=5)
    assert [(each.attempt, len(each.points)) for each in told] == [(1, 3), (2, 1), (10, 3)]


def test_what_was_reached_is_the_latest_checkpoint_of_any_attempt(tmp_path: Path) -> None:
    assert reached(tmp_path / "none", trial_id="t", steps=9) == -1
    for attempt, steps in ((1, [2, 5]), (2, [3])):
        folder = tmp_path / f"attempt-{attempt}"
        folder.mkdir()
        lines = [json.dumps({"type": "checkpoint", "step": step, "path": "gone"}) for step in steps]
        (folder / "reports.jsonl").write_text("\n".join([*lines, '{"type": "checkpoint", "step": 9']))
    assert reached(tmp_path, trial_id="t", steps=9) == 5
