"""Short names of the types of pytest's fixtures."""

from __future__ import annotations

import pytest

Capsys = pytest.CaptureFixture[str]
Caplog = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch
Folders = pytest.TempPathFactory
