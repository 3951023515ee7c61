"""An S3 server on loopback, with a bucket; and a cache of the test's own."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs
from s3_server import Server


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
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
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
