"""The lease in storage: one of several has it, on a real S3 server."""

from __future__ import annotations

import sys
from typing import Any

import obstore
import pytest

from hpxfer.errors import HpxferError
from hpxfer.storage.lease import leased
from hpxfer.storage.lease_object import LeaseObject
from hpxfer.storage.remote import Remote
from hpxfer.storage.uri import Uri, parse_root
from hpxfer.store.location import RemoteLocation, open_location

CONDITIONLESS = "this storage does not write on a condition"


def remote_at(root: str) -> Remote:
    location = open_location(root, "small")
    assert isinstance(location, RemoteLocation)
    return location._remote


def test_a_slot_keeps_its_promises(s3: str) -> None:
    lease_storage = LeaseObject(remote_at(s3))
    assert lease_storage.read() is None
    assert lease_storage.create(b"one")
    assert not lease_storage.create(b"two")
    assert not lease_storage.swap(b"other", b"two")
    assert lease_storage.read() == b"one"
    assert lease_storage.swap(b"one", b"two")
    assert lease_storage.swap(b"two", b"three", takeover=True)
    lease_storage.drop(b"two")
    assert lease_storage.read() == b"three"
    lease_storage.drop(b"three")
    assert lease_storage.read() is None
    lease_storage.drop(b"three")
    assert not lease_storage.swap(b"three", b"four")


@pytest.mark.parametrize("old", [None, b"a dead one"])
def test_of_two_that_write_at_once_one_has_it(s3: str, old: bytes | None) -> None:
    remote = remote_at(s3)
    if old is not None:
        remote.write("lease.json", old)
    got: list[bool] = []

    def take(lease_storage: LeaseObject, content: bytes) -> bool:
        return lease_storage.create(content) if old is None else lease_storage.swap(old, content, takeover=True)

    class Late(LeaseObject):
        """Another driver writes between its read and its write."""

        def _found(self) -> tuple[bytes, Any] | None:
            found = super()._found()
            if not got:
                got.append(take(LeaseObject(remote), b"first"))
            return found

    late = take(Late(remote), b"second")
    assert [*got, late] == [True, False]
    assert remote.read("lease.json") == b"first"


def test_a_bucket_that_is_not_there_is_an_error(s3: str) -> None:
    uri = parse_root("s3://no-such-bucket/x")
    assert isinstance(uri, Uri)
    with pytest.raises(OSError, match="no-such-bucket"):
        LeaseObject(Remote(uri)).create(b"one")


def test_storage_without_conditions_says_so(caplog: pytest.LogCaptureFixture) -> None:
    uri = parse_root("memory://bucket/lease")
    assert isinstance(uri, Uri)
    lease_storage = LeaseObject(Remote(uri))
    assert lease_storage.create(b"one")
    assert not lease_storage.create(b"two")
    assert lease_storage.swap(b"one", b"two")
    assert not lease_storage.swap(b"one", b"three")
    lease_storage.drop(b"two")
    assert lease_storage.read() is None
    assert caplog.messages == [message for message in caplog.messages if message.startswith(f"{uri}: {CONDITIONLESS}")]
    assert len(caplog.messages) == 1


def test_a_server_that_ignores_conditions_is_found_out(
    s3: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda *args, mode, **rest: put(*args, mode="overwrite", **rest))
    assert LeaseObject(remote_at(s3)).create(b"one")
    assert [CONDITIONLESS in message for message in caplog.messages] == [True]


def test_without_obstore_the_extra_is_named(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(HpxferError, match=r"pip install 'hpxfer\[s3\]'"):
        LeaseObject(remote_at(s3)).create(b"one")


def test_the_lease_is_kept_in_storage(s3: str) -> None:
    remote = remote_at(s3)
    with leased(LeaseObject(remote), "there", bump_s=0.01) as lease:
        first = remote.read("lease.json")
        while remote.read("lease.json") == first:
            pass
        lease.check()
    assert remote.read("lease.json") is None


def test_a_lease_that_another_took_is_lost(s3: str) -> None:
    remote = remote_at(s3)
    with leased(LeaseObject(remote), "there", bump_s=3600.0) as lease:
        remote.write("lease.json", b"somebody else's")
        with pytest.raises(HpxferError, match="was taken over by something unreadable"):
            lease.check()
    assert remote.read("lease.json") == b"somebody else's"
