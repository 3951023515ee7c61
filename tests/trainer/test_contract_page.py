"""The page of the contract says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from docs_markdown import blocks

from hpxfer.trainer.ending import BAD_INPUT, TRY_AGAIN
from hpxfer.trainer.job import CONTRACT, ENVIRONMENT, Timeouts
from hpxfer.trainer.lines import parse_line
from hpxfer.trainer.supervisor import HALF_BYTES, QUICK_S

PAGE = (Path(__file__).parents[2] / "docs" / "any_trainer.md").read_text(encoding="utf-8")
CONTRACT_PART = PAGE[PAGE.index("## The contract") :]


def section(heading: str) -> str:
    return CONTRACT_PART.partition(f"### {heading}\n")[2].partition("\n### ")[0]


def test_the_lines_of_the_page_are_lines() -> None:
    (example,) = (block for block in blocks(CONTRACT_PART, "json") if '"report"' in block)
    for line in json.loads(example):
        parse_line(json.dumps(line).encode(), trial_id="t1", attempt=1, steps=10)


def test_the_environment_is_that_of_the_page() -> None:
    listed = re.search(r"\n\n(`PATH`.*?)\n\n", section("The environment"), re.DOTALL)
    assert listed is not None
    assert re.findall(r"`([^`]+)`", listed[1]) == list(ENVIRONMENT)


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"`contract` | {CONTRACT}," in CONTRACT_PART
    assert f"Exit with {TRY_AGAIN} if" in CONTRACT_PART
    assert f"with {BAD_INPUT} if" in CONTRACT_PART
    assert f"`start_s` | until the first line | {Timeouts().start_s:g} |" in CONTRACT_PART
    assert f"the last {HALF_BYTES // 1024} KiB" in CONTRACT_PART
    assert f"at most {QUICK_S:g} seconds" in CONTRACT_PART


def test_the_function_of_the_page_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    (example,) = (block for block in blocks(CONTRACT_PART, "python") if "def train" in block)
    exec(example, names)

    class Trial:
        steps = 3
        reported: list[tuple[int, float]] = []  # noqa: RUF012

        def report(self, step: int, loss: float) -> None:
            self.reported.append((step, loss))

    assert names["train"](Trial()) == {"validation": Trial.reported[-1][1]}
    assert [step for step, _ in Trial.reported] == [0, 1, 2]
