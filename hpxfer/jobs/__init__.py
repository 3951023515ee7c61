"""Sweeps as jobs of a Ray cluster: submit, status, logs, stop, fetch."""
