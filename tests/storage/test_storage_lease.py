"""The lease in storage: one of several has it, on a real S3 server."""

from __future__ import annotations

import pytest

from hpxfer.errors import HpxferError
from hpxfer.storage.lease import leased
from hpxfer.storage.lease_object import LeaseObject
from hpxfer.storage.remote import Remote
from hpxfer.store.location import RemoteLocation, open_location


def remote_at(root: str) -> Remote:
    location = open_location(root, "small")
    assert isinstance(location, RemoteLocation)
    return location._remote


def test_a_slot_keeps_its_promises(s3: str) -> None:
    lease_storage = LeaseObject(remote_at(s3), settle_s=0.0)
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
    got = []

    def take(lease_storage: LeaseObject, content: bytes) -> bool:
        return lease_storage.create(content) if old is None else lease_storage.swap(old, content, takeover=True)

    class Late(Remote):
        """Reads, and writes only after another has written."""

        def write(self, name: str, content: bytes) -> None:
            got.append(take(LeaseObject(remote, sleep=lambda _: super(Late, self).write(name, content)), b"first"))

    late = take(LeaseObject(Late(remote.uri), settle_s=0.0), b"second")
    assert [*got, late] == [False, True]
    assert remote.read("lease.json") == b"second"


def test_the_lease_is_kept_in_storage(s3: str) -> None:
    remote = remote_at(s3)
    with leased(LeaseObject(remote, settle_s=0.0), "there", bump_s=0.01) as lease:
        first = remote.read("lease.json")
        while remote.read("lease.json") == first:
            pass
        lease.check()
    assert remote.read("lease.json") is None


def test_a_lease_that_another_took_is_lost(s3: str) -> None:
    remote = remote_at(s3)
    with leased(LeaseObject(remote, settle_s=0.0), "there", bump_s=3600.0) as lease:
        remote.write("lease.json", b"somebody else's")
        with pytest.raises(HpxferError, match="was taken over by something unreadable"):
            lease.check()
    assert remote.read("lease.json") == b"somebody else's"
