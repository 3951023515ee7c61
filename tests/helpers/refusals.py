"""Calls that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpxfer.errors import HpxferError


def refused(said: str, call: Callable[..., object], *args: Any, **options: Any) -> None:
    """Check that the call is refused with a message that matches."""
    with pytest.raises(HpxferError, match=said):
        call(*args, **options)
