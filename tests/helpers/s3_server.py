"""A real S3 server on loopback that can go away and come back, with what it holds, and that can refuse everybody."""

from __future__ import annotations

import logging
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_ports
from pyarrow import fs


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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """The one S3 server of all tests."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = Server()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def s3(s3_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty prefix in a bucket that is there."""
    own = {"ACCESS_KEY_ID": "someone", "SECRET_ACCESS_KEY": "secret", "EC2_METADATA_DISABLED": "true"}
    for name, value in (*own.items(), ("ENDPOINT_URL", s3_server.url)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bucket = f"bucket-{uuid.uuid4().hex}"
    maker, _ = fs.FileSystem.from_uri(f"s3://{bucket}?region=us-east-1&allow_bucket_creation=true")
    maker.create_dir(bucket)
    return f"s3://{bucket}/some prefix/100%25"


@pytest.fixture
def s3_names(s3: str) -> Callable[[str], list[str]]:
    """Return what a folder below the prefix holds, by name."""
    key = s3.removeprefix("s3://")
    found, _ = fs.FileSystem.from_uri(f"s3://{key.partition('/')[0]}?region=us-east-1")

    def names(folder: str) -> list[str]:
        selector = fs.FileSelector(f"{key}/{folder}", allow_not_found=True, recursive=True)
        return sorted(info.base_name for info in found.get_file_info(selector) if info.is_file)

    return names
