"""The Ray executor passes the executors' suite, and says so when no cluster answers."""

from __future__ import annotations

import pytest

from hpxfer.executors.ray import RayExecutor
from hpxfer.testing.executor import ExecutorSuite


@pytest.mark.filterwarnings("ignore")  # Ray's own, in its own threads
class TestRayExecutor(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> RayExecutor:
        return RayExecutor(workers=2)
