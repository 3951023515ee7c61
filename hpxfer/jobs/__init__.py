"""Sweeps as jobs of a Ray cluster: submit and fetch."""
