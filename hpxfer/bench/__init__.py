"""Benchmarks: the speeds of this machine that `plan` reads."""
