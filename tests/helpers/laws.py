"""How many random examples a law is tried with: few of them in `make test`, all in `make test-slow`."""

from __future__ import annotations

import os

MANY = os.environ.get("HPXFER_EXAMPLES") == "many"


def examples(number: int) -> int:
    """Return `number`, or a quarter of it."""
    return number if MANY else max(5, number // 4)
