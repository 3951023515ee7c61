"""Commands about a job as text that can be copied into a shell: with the address of the cluster, and quoted."""

from __future__ import annotations

import os
import shlex

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"  # from which the commands take an address that is not given


def next_command(name: str, *arguments: str, address: str) -> str:
    """Return a command about a job, e.g. `hpxfer status hpxfer-a-1 --address http://head:8265`.

    The address is left out only if it is the default and this shell names no other.
    """
    is_default = address == DEFAULT_ADDRESS and not os.environ.get(ADDRESS_VARIABLE)
    return shlex.join(["hpxfer", name, *arguments, *([] if is_default else ["--address", address])])
