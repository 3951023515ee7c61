"""Fixtures that several test modules share."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpxfer.data import data_ref
from hpxfer.spec import SweepSpec, load_sweep
from hpxfer.trial import Setting, setting_of

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def smoke() -> SweepSpec:
    """The smallest committed sweep."""
    return load_sweep(ROOT / "sweeps" / "smoke.yaml")


@pytest.fixture(scope="session")
def setting(smoke: SweepSpec) -> Setting:
    """The setting of the smallest committed sweep."""
    return setting_of(smoke, data_ref(smoke.data))
