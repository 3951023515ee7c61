"""Sweeps as jobs of a Ray cluster: submit and fetch. What the commands need to show their help is here."""

import shlex

DEFAULT_ADDRESS = "http://127.0.0.1:8265"  # of Ray's dashboard
DEFAULT_ROOT = "~/hpxfer-results"


def ray_job(action: str, *arguments: str, address: str) -> str:
    """Return Ray's own command about a job, e.g. `ray job logs --address http://head:8265 hpxfer-a-1`."""
    return shlex.join(["ray", "job", action, "--address", address, *arguments])
