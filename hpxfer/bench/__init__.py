"""Benchmarks: every speed that the project claims is measured here, beside a yardstick that is measured in the same
run.
"""
