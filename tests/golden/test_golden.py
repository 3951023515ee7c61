"""Nothing that golden.json holds has moved. `python tests/golden/golden.py --write` renews it, with a reason."""

from __future__ import annotations

import pytest
from golden import ITEMS, compared, differences


@pytest.mark.parametrize("name", ITEMS)
def test_nothing_moved(name: str) -> None:
    assert compared(name) == []


def test_a_difference_is_found_and_bits_count_on_the_same_machine_only() -> None:
    old = {"shown": {"loss": [1.0, 2.0]}, "bits": "a", "ids": "x"}
    assert list(differences(old, {**old, "shown": {"loss": [1.0, 2.001]}}, bits=False)) == [
        "/shown/loss[1]: was 2.0, is 2.001"
    ]
    assert list(differences(old, {**old, "bits": "b"}, bits=True)) == ["/bits: was a, is b"]
    assert list(differences(old, {**old, "bits": "b", "shown": {"loss": [1.0, 2.000001]}}, bits=False)) == []
    assert list(differences(old, {"shown": {}, "bits": "a"}, bits=True)) == ["/ids: gone", "/shown/loss: gone"]
