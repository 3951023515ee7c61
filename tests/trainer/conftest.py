"""Every test of this folder that runs a command also asserts that none of its processes is left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from trainer_jobs import Runner


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """Runs commands as attempts at one trial."""
    if sys.platform != "linux":
        pytest.skip("what is left of a command is looked for in /proc")
    found = Runner(tmp_path / "t1")
    yield found
    assert found.alive == []
