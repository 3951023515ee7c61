"""The local executor passes the executors' suite."""

from __future__ import annotations

import pytest

from hpxfer.executors.local import LocalExecutor
from hpxfer.testing.executor import ExecutorSuite


class TestLocalExecutor(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> LocalExecutor:
        return LocalExecutor(workers=2)
