"""A process that asked for the numbers of multipliers is taken to apply them by itself. No test asks for another."""

from __future__ import annotations

import pytest

from hpxfer.recipe import unattached


@pytest.fixture(autouse=True)
def _nothing_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unattached, "_HANDED_OUT", set())
