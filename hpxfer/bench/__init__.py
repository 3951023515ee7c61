"""Benchmarks: every speed that the project claims is measured here, beside its own yardstick, in one run."""
