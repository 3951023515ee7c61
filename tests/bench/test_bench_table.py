"""Tables of benchmarks: every goal has its line, measured or not. A goal is a column, and nothing is graded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

from bench_record import RECORD

from hpxfer.bench.goals import GOALS, Goal, goals
from hpxfer.bench.table import BENCHES, bench_markdown, table_text
from hpxfer.plan.speeds import Kind, Record, Row, append


def record_of(bench: str, device: Kind, *rows: Row) -> Record:
    machine = {**RECORD.machine, **({"gpu": "H200"} if device == "cuda" else {})}
    return replace(RECORD, name=bench, device=device, machine=machine, rows=rows)


def row_of(goal: Goal, value: float, note: str = "") -> Row:
    return Row(key=goal.key, what=goal.what, value=value, unit=goal.unit, note=note)


def line_of(text: str, what: str) -> str:
    (line,) = [line for line in text.splitlines() if what in line and ("|" in line or line.startswith(what))]
    return line


def test_keys_are_unique_and_every_goal_has_a_table() -> None:
    keys = [goal.key for bench in BENCHES for device in get_args(Kind) for goal in goals(bench, device)]
    assert Counter(keys).most_common(1)[0][1] == 1
    assert keys == list(GOALS)


def test_without_any_run_every_row_is_unmeasured(tmp_path: Path) -> None:
    text = bench_markdown(tmp_path)
    lines = Counter(
        line.partition(" | ")[0].removeprefix("| ") for line in text.splitlines() if "| unmeasured |" in line
    )
    assert lines == Counter(goal.what for goal in GOALS.values())
    assert "Unmeasured; to measure: `hpxfer bench trainer --device cuda`." in text
    assert text.count("Unmeasured; to measure") == 2 * len(BENCHES)


def test_a_goal_is_a_column_and_grades_nothing(tmp_path: Path) -> None:
    (goal, *_) = goals("trainer", "cpu")
    append(record_of("trainer", "cpu", row_of(goal, 2.89)), tmp_path)
    assert line_of(bench_markdown(tmp_path), f"| {goal.what} |") == f"| {goal.what} | 2.89x | 4x |  |"


def test_rows_without_a_goal_and_notes_are_shown(tmp_path: Path) -> None:
    (goal, *_) = goals("kernels", "cpu")
    peak = Row(key="peak", what="the peak", value=123456.0, unit="GFLOP/s")
    append(record_of("kernels", "cpu", row_of(goal, 2.0, "it is bound by b"), peak), tmp_path)
    text = bench_markdown(tmp_path)
    assert "| the peak | 123456 GFLOP/s |  |  |" in text
    assert f"- {goal.what}: it is bound by b." in text
    assert "the peak:" not in text
    assert "2026-11-21; Chip, 2 cores, 1 thread(s); torch 2.13.0; `hpxfer bench trainer --device cpu`." in text


def test_the_terminal_table_has_what_each_row_was_made_of() -> None:
    (goal, *_) = goals("trainer", "cuda")
    row = replace(row_of(goal, 1.5), numbers={"mfu": 0.25, "m_tokens_per_s": 1.5})
    text = table_text("trainer", "cuda", record_of("trainer", "cuda", row))
    assert text.startswith("The trainer on a GPU: 2026-11-21; H200; Chip, 2 cores")
    assert line_of(text, goal.what).split("  ")[1:3] == ["1.5 M tokens/s", "1.6 M tokens/s"]
    assert f"  {goal.what}: mfu 0.25, m tokens per s 1.5" in text.splitlines()
    assert text.count("unmeasured") == len(goals("trainer", "cuda")) - 1
    assert table_text("trainer", "cuda", None).count("unmeasured") == len(goals("trainer", "cuda")) + 1
