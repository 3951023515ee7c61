"""Lines, files of them, and the history of attempts: what is read, whatever they hold and however they grow."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpxfer.trainer.lines import (
    MAX_LINE_BYTES,
    Alive,
    Checkpoint,
    Fault,
    Groups,
    Line,
    Point,
    Report,
    Reports,
    Result,
    merged,
    newest_checkpoint,
    parse_line,
    reached,
    read_attempts,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NUMBERS = st.floats() | st.integers(-(10**400), 10**400)


def parse(data: object) -> Line:
    return parse_line(json.dumps(data).encode(), trial_id="t1", attempt=2, steps=10)


@given(st.integers(0, 10), NUMBERS, st.dictionaries(st.text().map("m_".__add__), NUMBERS))
def test_a_report_reads_back(step: int, loss: float, metrics: dict[str, float]) -> None:
    point = parse({"type": "report", "step": step, "loss": loss, **metrics, "trial": "t1", "attempt": 2, "time": 1.5})
    assert isinstance(point, Report)
    assert point.step == step
    for got, given_ in [(point.loss, loss), *((point.metrics[name], metrics[name]) for name in metrics)]:
        assert isinstance(got, float)
        assert got == given_ or (math.isnan(got) and math.isnan(given_)) or math.isinf(got)
    assert set(point.metrics) == set(metrics)


@pytest.mark.parametrize(
    ("spelled", "value"),
    [
        *(("NaN", math.nan), ("nan", math.nan), ("Infinity", math.inf), ("+inf", math.inf), (" -Inf ", -math.inf)),
        ("-Infinity", -math.inf),
    ],
)
def test_numbers_that_are_not_finite_may_be_text(spelled: str, value: float) -> None:
    point = parse({"type": "report", "step": 0, "loss": spelled})
    assert isinstance(point, Report)
    assert point.loss == value or (math.isnan(point.loss) and math.isnan(value))


REPORT = {"type": "report", "step": 1, "loss": 3.2}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("step 1 loss 3.2", "must be one JSON object, got 'step 1"),
        ({"step": 1, "loss": 3.2}, "type: must be one of report, alive"),
        ({**REPORT, "type": "reprot"}, "did you mean 'report'?"),
        ({"type": "report", "step": 1}, "loss: must be given"),
        ({**REPORT, "lr": "1e-3"}, "lr: must be a number"),
        ({**REPORT, "step": 11}, "step: must not be beyond the 10 steps"),
        ({**REPORT, "trial": "t2"}, "must be the trial of the config, 't1', got 't2'"),
        ({**REPORT, "attempt": 7}, "must be the attempt of the config, 2, got 7"),
        *(({**REPORT, "step": step}, "step: must") for step in (-1, 1.5, True, None, "1", math.nan, 10**30)),
        *(({"type": "checkpoint", "step": 1, "path": path}, "path: must") for path in ("", None, 3, "a\0b")),
    ],
)
def test_a_line_that_breaks_a_rule(line: object, words: str) -> None:
    with pytest.raises(Fault) as fault:
        parse(line)
    assert words in str(fault.value)


def test_the_other_lines() -> None:
    assert parse({"type": "alive"}) == Alive()
    assert parse({"type": "alive", "attempt": 2.0}) == Alive(attempt=2)
    assert parse({"type": "checkpoint", "step": 3.0, "path": "ckpt/3"}) == Checkpoint(step=3, path="ckpt/3")
    assert parse({"type": "groups", "step": 1, "groups": [{"lr": 1}]}) == Groups(step=1, groups=[{"lr": 1}])
    assert parse({"type": "result", "status": "diverged", "step": 4}) == Result(status="diverged", step=4)
    found = parse({"type": "result", "status": "finished", "validation_loss": 2, "accuracy": 0.5})
    assert isinstance(found, Result)
    assert (found.validation_loss, found.metrics) == (2.0, {"accuracy": 0.5})


@example(b"[" * 100_000)
@given(st.binary() | JSON.map(lambda data: json.dumps(data).encode()))
def test_any_other_text_is_a_fault(text: bytes) -> None:
    with pytest.raises(Fault, match="must"):
        parse_line(text, trial_id="t1", attempt=2, steps=10)


@given(
    st.sampled_from(["report", "alive", "checkpoint", "groups", "result"]),
    st.dictionaries(st.sampled_from(["step", "loss", "path", "groups", "status", "time", "trial", "attempt"]), JSON),
)
def test_any_content_is_a_line_or_a_fault(kind: str, content: dict[str, object]) -> None:
    line: Line | Fault
    try:
        line = parse({"type": kind, **content})
    except Fault as fault:
        line = fault
    if isinstance(line, Fault):
        assert "must" in str(line)
        assert len(str(line)) < 500
    else:
        assert content.get("trial", "t1") == "t1"
        assert content.get("attempt", 2) == 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The report file of an attempt 1."""
    (tmp_path / "attempt-1").mkdir()
    return tmp_path / "attempt-1" / "reports.jsonl"


def reports_of(path: Path) -> Reports:
    return Reports(path.parents[1], 1, trial_id="t1", steps=1000)


def report_line(step: int) -> bytes:
    return json.dumps({"type": "report", "step": step, "loss": 1.0, "note of é": step}, ensure_ascii=False).encode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 30),
    st.lists(st.integers(1, 60), max_size=30),
    st.binary(max_size=20).filter(lambda b: b"\n" not in b),
)
def test_pieces_make_no_difference(path: Path, num_lines: int, cuts: list[int], torn: bytes) -> None:
    path.unlink(missing_ok=True)
    data = b"".join(report_line(step) + b"\r\n\n" for step in range(num_lines)) + torn
    reports, lines = reports_of(path), list(reports_of(path).read())
    with path.open("ab") as file:
        for size in [*cuts, len(data)]:
            file.write(data[:size])
            file.flush()
            data = data[size:]
            lines += reports.read()
    assert [line.step for line in lines if isinstance(line, Report)] == list(range(num_lines))
    assert [point.step for point in reports.points] == list(range(num_lines))
    assert reports.fault is None
    assert not reports.has_more


def test_a_fault_ends_the_reading(path: Path) -> None:
    assert (list(reports_of(path).read()), reports_of(path).fault) == ([], None)  # not yet there
    path.write_bytes(report_line(0) + b"\nhello\n" + report_line(1) + b"\n")
    reports = reports_of(path)
    assert len(list(reports.read())) == 1
    assert str(reports.fault).startswith(f"{path}:2: must be one JSON object")
    assert list(reports.read()) == []
    path.write_bytes(report_line(0) + b"\n")
    reports = reports_of(path)
    assert len(list(reports.read())) == 1
    path.write_bytes(b"")  # it was cut
    assert list(reports.read()) == []
    assert "open it for appending" in str(reports.fault)
    with path.open("wb") as file:
        file.truncate(2**40)
    reports = reports_of(path)
    assert list(reports.read()) == []
    assert "must have at most 67.9062 MiB for 1000 steps" in str(reports.fault)


def all_of(reports: Reports) -> tuple[int, int]:
    """Return how many lines reports have, and how much memory reading took at most."""
    tracemalloc.start()
    count = 0
    while reports.has_more:
        count += sum(1 for _ in reports.read())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return count, peak


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_of_absurd_size(path: Path, end: bytes) -> None:
    path.write_bytes(report_line(0) + b"\n" + b"x" * (MAX_LINE_BYTES + 2**20) + end)
    reports = reports_of(path)
    count, peak = all_of(reports)
    assert count == 1
    assert peak < 5 * MAX_LINE_BYTES
    assert "reports.jsonl:2: a line must have at most 4 MiB" in str(reports.fault)


def test_many_lines_take_little_memory(path: Path) -> None:
    path.write_bytes(b'{"type": "alive"}\n' * 50_000 + b'{"type": "groups", "step": 1, "groups": []}\n' * 1000)
    reports = reports_of(path)
    count, peak = all_of(reports)
    assert count == 51_000
    assert peak < 16 * 2**20
    assert len(reports.groups) < 100


STEPS = st.sets(st.integers(0, 20)).map(sorted)


def reported(tmp_path: Path, points: list[Point] | None = None, *checkpoints: tuple[int, str]) -> Reports:
    """Return what an attempt has reported, without a file."""
    found = Reports(tmp_path, 1, trial_id="t1", steps=30)
    found.points = points or []
    found.checkpoints = [Checkpoint(step=step, path=path) for step, path in checkpoints]
    return found


@given(st.lists(STEPS, max_size=5))
def test_a_later_attempt_wins_from_its_first_step_on(attempts: list[list[int]]) -> None:
    told = [reported(Path(), [Point(step, float(at), {}) for step in steps]) for at, steps in enumerate(attempts)]
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
        reported(tmp_path, None, (1, "a"), (2, str(tmp_path / "b")), (3, "gone")),
        reported(tmp_path, None, (1, "a")),
    ]
    assert newest_checkpoint(tmp_path, told) == str(tmp_path / "b")
    assert newest_checkpoint(tmp_path, told[1:]) == str(tmp_path / "a")
    assert newest_checkpoint(tmp_path, []) is None
    told = [reported(tmp_path, None, (1, "a")), reported(tmp_path, None, (1, "b"))]
    assert newest_checkpoint(tmp_path, told) == str(tmp_path / "b")  # of two of a step, the later


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
    told = read_attempts(tmp_path, trial_id="t1", steps=5, before=11)
    assert [(each.attempt, len(each.points)) for each in told] == [(1, 3), (2, 1), (10, 3)]


def test_what_was_reached_is_the_latest_checkpoint_of_any_attempt(tmp_path: Path) -> None:
    assert reached(read_attempts(tmp_path / "none", trial_id="t", steps=9)) == -1
    for attempt, steps in ((1, [2, 5]), (2, [3])):
        folder = tmp_path / f"attempt-{attempt}"
        folder.mkdir()
        lines = [json.dumps({"type": "checkpoint", "step": step, "path": "gone"}) for step in steps]
        (folder / "reports.jsonl").write_text("\n".join([*lines, '{"type": "checkpoint", "step": 9']))
    assert reached(read_attempts(tmp_path, trial_id="t", steps=9)) == 5
