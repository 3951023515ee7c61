"""Fixtures that several test modules share, and the same random examples in every run.

pytest puts this folder on the import path because this file is in it: tests import `strategies` and other helpers.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from hpxfer.data import data_ref
from hpxfer.spec import SweepSpec, load_sweep
from hpxfer.trial import Setting, setting_of

# Triton reads it when it is imported, and again when a kernel is defined: both come later, with the first launch.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("hpxfer", deadline=None, derandomize=True, database=None, max_examples=20)
settings.load_profile("hpxfer")


@pytest.fixture(scope="session")
def smoke() -> SweepSpec:
    """The smallest committed sweep."""
    return load_sweep(ROOT / "sweeps" / "smoke.yaml")


@pytest.fixture(scope="session")
def setting(smoke: SweepSpec) -> Setting:
    """The setting of the smallest committed sweep."""
    return setting_of(smoke, data_ref(smoke.data))
