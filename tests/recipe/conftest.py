"""One torch thread in every test of this folder."""

from tiny_trials import one_thread

__all__ = ["one_thread"]
