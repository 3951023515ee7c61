"""Tables of a user's own, for the length of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hpxfer.scaling import Table, register_parameterization
from hpxfer.scaling.tables import PARAMETERIZATIONS


@pytest.fixture
def register() -> Iterator[Callable[[Table], None]]:
    """Yield a function that registers a table, in place of one that the test registered before."""
    names: set[str] = set()

    def registered(table: Table) -> None:
        while names:
            PARAMETERIZATIONS.remove(names.pop())
        names.add(register_parameterization(table).name)

    yield registered
    for name in names:
        PARAMETERIZATIONS.remove(name)
