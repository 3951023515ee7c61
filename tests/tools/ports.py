"""Ports for the servers of tests and soaks."""

from __future__ import annotations

import random
import socket

# Above what Ray gives its workers (10002-19999), below what the system gives to any client that connects (from 32768):
# nobody comes upon one of these between the look at it and its use.
RANGE = range(20000, 32768)


def free_ports(number: int) -> list[int]:
    """Return ports of RANGE that nothing listens on."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(RANGE, len(RANGE)):  # tests of another run look, too
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        ports.append(port)
        if len(ports) == number:
            return ports
    raise AssertionError(f"no {number} free ports in {RANGE}")
