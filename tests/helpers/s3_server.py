"""A real S3 server on loopback that can go away and come back, with what it holds, and that can refuse everybody."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ports import free_ports


class Server:
    """The server. `stop` and `start` keep its address."""

    def __init__(self) -> None:
        (self._port,) = free_ports(1)
        self.start()

    def start(self) -> None:
        """Listen. A machine on which only GPU tests run need not have moto."""
        moto = pytest.importorskip("moto.server", reason="moto is not installed")
        self._server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        """Close the port."""
        self._server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @contextmanager
    def forbidding(self) -> Iterator[None]:
        """Allow nothing to anybody while entered."""
        self._allow("0")
        try:
            yield
        finally:
            self._allow("inf")

    def _allow(self, num_requests: str) -> None:
        header = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{self.url}/moto-api/reset-auth", num_requests.encode(), header)
        with urllib.request.urlopen(request, timeout=60):
            pass
