"""Ports that are free: each its own, none that somebody has."""

from __future__ import annotations

import socket

import ports
import pytest
from ports import RANGE, free_ports


def test_ports_are_different_and_can_be_had_together() -> None:
    found = free_ports(3)
    assert len(set(found)) == 3
    assert set(found) <= set(RANGE)
    for server in [socket.create_server(("127.0.0.1", port)) for port in found]:
        server.close()


def test_a_port_that_somebody_has_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = free_ports(2)
    monkeypatch.setattr(ports, "RANGE", [taken, free])
    with socket.create_server(("127.0.0.1", taken)):
        assert free_ports(1) == [free]
        with pytest.raises(AssertionError, match="no 2 free ports"):
            free_ports(2)
