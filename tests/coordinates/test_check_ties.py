"""A check of a table with a zero router chooses among equal experts as a sweep does."""

from __future__ import annotations

from typing import Any

import pytest
from sweep_text import edited

from hpxfer.coordinates import gpt
from hpxfer.coordinates.checking import check
from hpxfer.spec import parse_sweep
from hpxfer.trial import Trial


class Seen(Exception):
    """Ends a check before anything is trained."""


@pytest.mark.parametrize(
    ("table", "ties", "expected"),
    [("mssp-i", None, "random"), ("mup-i", None, "index"), ("mssp-i", "index", "index")],
)
def test_the_trials_of_a_check(monkeypatch: pytest.MonkeyPatch, table: str, ties: str | None, expected: str) -> None:
    found: list[Trial] = []

    def observe(trials: list[Trial], **_: Any) -> None:
        found.extend(trials)
        raise Seen

    monkeypatch.setattr(gpt, "observe", observe)
    given = [] if ties is None else [("context: 64", f"context: 64\n  ties: {ties}")]
    sweep = parse_sweep(edited(("[32, 64]", "[32, 64, 128, 256]"), *given))
    with pytest.raises(Seen):
        check(table, sweep=sweep)
    assert {trial.setting.ties for trial in found} == {expected}
