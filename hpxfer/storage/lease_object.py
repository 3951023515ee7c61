"""The lease's place in object storage: see `hpxfer.storage.lease_file.LeaseStorage`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hpxfer.storage.lease_file import LEASE_FILE
from hpxfer.storage.remote import Remote

# After a write everybody who wrote at the same time has written too; the last one stands.
SETTLE_S = 2.0


@dataclass(frozen=True)
class LeaseObject:
    """An object. Storage that is reached this way has no write that fails if another was quicker.

    So whoever takes the lease writes, waits, and has it if what stands there then is its own: of several that write
    within SETTLE_S, the last one has it. Two can only both believe so if a write that was begun before the other's
    arrives more than SETTLE_S after it; the one that lost notices at its next bump, and before it writes results.
    """

    remote: Remote
    settle_s: float | None = None  # default: SETTLE_S
    sleep: Callable[[float], None] = time.sleep

    def read(self) -> bytes | None:
        """See `LeaseStorage.read`."""
        return self.remote.read(LEASE_FILE)

    def create(self, content: bytes) -> bool:
        """See `LeaseStorage.create`."""
        return self.read() is None and self._take(content)

    def swap(self, old: bytes, new: bytes, *, takeover: bool = False) -> bool:
        """See `LeaseStorage.swap`."""
        if self.read() != old:
            return False
        if takeover:
            return self._take(new)
        self.remote.write(LEASE_FILE, new)
        return True

    def drop(self, old: bytes) -> None:
        """See `LeaseStorage.drop`."""
        if self.read() == old:
            self.remote.delete(LEASE_FILE)

    def _take(self, content: bytes) -> bool:
        self.remote.write(LEASE_FILE, content)
        self.sleep(SETTLE_S if self.settle_s is None else self.settle_s)
        return self.read() == content
