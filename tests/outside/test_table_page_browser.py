"""The page on a table in a real browser: its table of runs sorts and opens, and nothing fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chromium import needs_chromium, opened
from foreign_runs import foreign_table

import hpxfer

pytestmark = needs_chromium


@pytest.mark.slow
def test_every_run_is_on_the_page_and_opens(browser: Any, tmp_path: Path) -> None:
    frame = foreign_table({"good": 0.0, "plain": -1.0}, seed=1, seeds=(0, 1))
    columns = {"value": "lr", "scale": "width", "arm": "method"}
    hpxfer.judge(frame, columns=columns, control="plain", base="scale=256").write(tmp_path)
    said: list[str] = []
    with opened(browser) as page:
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((tmp_path / "report.html").as_uri())
        page.wait_for_selector("#trials-0 table")
        assert "1 to 25 of 96" in page.locator("#trials-0 .status").inner_text()
        page.locator("#trials-0 tbody tr").first.click()
        text = page.locator("#trial").inner_text()
        assert "Trial row 1" in text
        assert "multipliers" not in text
    assert said == []
