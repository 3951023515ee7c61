"""Fixtures that several test modules share, and the same random examples in every run.

Tests import the modules of tests/helpers by their bare names: pyproject.toml puts that folder on the path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from chromium import browser  # noqa: F401 - a fixture of several rooms
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from laws import examples
from recorded import SkipUnchanged
from s3_server import s3, s3_names, s3_server  # noqa: F401 - fixtures of several rooms

from hpxfer.data import data_ref
from hpxfer.spec import SweepSpec, load_sweep
from hpxfer.trial import Setting, setting_of

# Triton reads it when it is imported, and again when a kernel is defined: both come later, with the first launch.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parent.parent
# Each of them takes a gigabyte and most of a small machine: one at a time.
START_RAY = {
    *("test_asha.py", "test_interrupted_run.py", "test_jobs.py", "test_prepare_on_ray.py"),
    *("test_rank_loss.py", "test_ray.py", "test_ray_cluster.py", "test_soak.py", "test_sweep_ray.py"),
    "test_train_user.py",
}

settings.register_profile("hpxfer", deadline=None, derandomize=True, database=None, max_examples=examples(30))
settings.load_profile("hpxfer")
# Hypothesis also draws numbers that stand in those modules of the project that this process has loaded. Examples would
# change with the order of the tests and with any edit of hpxfer. Hypothesis has no setting for it.
providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipUnchanged())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is drawn at random, which `make test-slow` runs again, and all cases but the first of `first`."""
    seen: set[str] = set()
    for item in items:
        function = item.nodeid.partition("[")[0]
        if item.get_closest_marker("first") and function in seen:
            item.add_marker("slow")
        seen.add(function)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("law")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return how `pytest -n` spreads tests: a file stays in one process, and all that start Ray in the same one."""
    from xdist.scheduler import LoadScopeScheduling

    class OneRay(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "Ray" if file.rpartition("/")[2] in START_RAY else file

    return OneRay(config, log)


@pytest.fixture(scope="session")
def smoke() -> SweepSpec:
    """The smallest committed sweep."""
    return load_sweep(ROOT / "sweeps" / "smoke.yaml")


@pytest.fixture(scope="session")
def setting(smoke: SweepSpec) -> Setting:
    """The setting of the smallest committed sweep."""
    return setting_of(smoke, data_ref(smoke.data))
