"""One torch thread, and one data set for all runs."""

from __future__ import annotations

import pytest
from tiny_trials import one_thread, text_setting

from hpxfer.trial import Setting

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A setting with data: 6 steps of 64 tokens."""
    return text_setting(tmp_path_factory.mktemp("data"))
