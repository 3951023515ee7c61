"""Waiting for what another process does: a loaded machine is slow, and a test that hangs must still end."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TypeVar

LONG_S = 600.0
T = TypeVar("T")


def until(condition: Callable[[], T], what: str) -> T:
    """Return the first true value of `condition`; fail with `what` if there is none for very long."""
    deadline = time.monotonic() + LONG_S
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return value


def listens(port: int) -> bool:
    """Return whether something on this machine listens at a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
