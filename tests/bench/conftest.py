"""One torch thread, as benchmarks run."""

from __future__ import annotations

from tiny_trials import one_thread

__all__ = ["one_thread"]
