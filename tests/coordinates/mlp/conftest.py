"""One thread, as the trainer has: small matrices are slower on more. And a comparison with a limit that is cheap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hpxfer.coordinates.mlp import against_limit

FEW = 48  # seeds: fewer than a check takes, and enough for the effects that tests plant
FEW_SITES = 2048  # of the solver, whose error is below that of so few networks here too


@pytest.fixture
def few_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare fewer networks with their limit than a check does."""
    monkeypatch.setattr(against_limit, "SEEDS", dict.fromkeys(against_limit.SEEDS, FEW))
    monkeypatch.setattr(against_limit, "SITES", FEW_SITES)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
