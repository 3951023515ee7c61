"""The lease in storage: one of several has it, on a real S3 server."""

from __future__ import annotations

import pytest

from hpxfer.errors import HpxferError
from hpxfer.storage.lease import leased
from hpxfer.storage.lease_object import RemoteSlot
from hpxfer.storage.remote import Remote
from hpxfer.store.location import StoragePlace, open_place


def remote_at(root: str) -> Remote:
    place = open_place(root, "small")
    assert isinstance(place, StoragePlace)
    return place._remote


def test_a_slot_keeps_its_promises(s3: str) -> None:
    slot = RemoteSlot(remote_at(s3), settle_s=0.0)
    assert slot.read() is None
    assert slot.create(b"one")
    assert not slot.create(b"two")
    assert not slot.swap(b"other", b"two")
    assert slot.read() == b"one"
    assert slot.swap(b"one", b"two")
    assert slot.swap(b"two", b"three", takeover=True)
    slot.drop(b"two")
    assert slot.read() == b"three"
    slot.drop(b"three")
    assert slot.read() is None
    slot.drop(b"three")
    assert not slot.swap(b"three", b"four")


@pytest.mark.parametrize("old", [None, b"a dead one"])
def test_of_two_that_write_at_once_one_has_it(s3: str, old: bytes | None) -> None:
    remote = remote_at(s3)
    if old is not None:
        remote.write("lease.json", old)
    got = []

    def take(slot: RemoteSlot, content: bytes) -> bool:
        return slot.create(content) if old is None else slot.swap(old, content, takeover=True)

    class Late(Remote):
        """Reads, and writes only after another has written."""

        def write(self, name: str, content: bytes) -> None:
            got.append(take(RemoteSlot(remote, sleep=lambda _: super(Late, self).write(name, content)), b"first"))

    late = take(RemoteSlot(Late(remote.uri), settle_s=0.0), b"second")
    assert [*got, late] == [False, True]
    assert remote.read("lease.json") == b"second"


def test_the_lease_is_kept_in_storage(s3: str) -> None:
    remote = remote_at(s3)
    with leased(RemoteSlot(remote, settle_s=0.0), "there", bump_s=0.01) as lease:
        first = remote.read("lease.json")
        while remote.read("lease.json") == first:
            pass
        lease.check()
    assert remote.read("lease.json") is None


def test_a_lease_that_another_took_is_lost(s3: str) -> None:
    remote = remote_at(s3)
    with leased(RemoteSlot(remote, settle_s=0.0), "there", bump_s=3600.0) as lease:
        remote.write("lease.json", b"somebody else's")
        with pytest.raises(HpxferError, match="was taken over by something unreadable"):
            lease.check()
    assert remote.read("lease.json") == b"somebody else's"
