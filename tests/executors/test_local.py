"""The local executor passes the executors' suite."""

from __future__ import annotations

import pytest
from executor_suite import ExecutorSuite

from hpxfer.executors.local import LocalExecutor


class TestLocalExecutor(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> LocalExecutor:
        return LocalExecutor(workers=2)
