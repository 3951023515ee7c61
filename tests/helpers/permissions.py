"""Permissions of files that count for root too, as tests may run as root."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# linux/capability.h: what lets root pass the permissions of files and folders.
_VERSION_3, _PASSING = 0x20080522, 1 << 1 | 1 << 2
_Header = ctypes.c_uint32 * 2
_Sets = ctypes.c_uint32 * 6  # effective, permitted, inheritable; then the same of the upper 32 bits


@contextmanager
def permissions_count() -> Iterator[None]:
    """Make this thread, and those that it starts, obey the permissions of files while entered."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, before, during = _Header(_VERSION_3, 0), _Sets(), _Sets()
    _done(libc.capget(header, before))
    during[:] = before[:]
    during[0] &= ~_PASSING
    _done(libc.capset(header, during))
    try:
        yield
    finally:
        _done(libc.capset(header, before))


def _done(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
