"""Reading: the bytes of plain and packed files, and the checks that several formats share."""

from __future__ import annotations

import gzip
import os
import zlib
from typing import IO

import numpy as np
from numpy.typing import NDArray

from hpxfer.errors import HpxferError
from hpxfer.host.files import open_regular, reason

MAX_BYTES = 16 * 2**30  # of one array, which is held in memory
AGAIN = "fetch it again"


def read_exactly(path: str, start: int, num_bytes: int, what: str) -> bytes:
    """Return `num_bytes` bytes of a plain or .gz file from byte `start` on, the last of the file.

    Raise HpxferError if the file ends earlier, goes on, or cannot be read.
    """
    if num_bytes > MAX_BYTES:
        raise HpxferError(f"{path}: must hold at most {MAX_BYTES} bytes of {what}, got {num_bytes}; name fewer samples")
    with opened(path) as file:
        head = read(file, path, start)
        found = read(file, path, num_bytes)
        more = read(file, path, 1)
    if len(head) + len(found) < start + num_bytes or more:
        got = "more" if more else str(len(head) + len(found))
        raise HpxferError(f"{path}: must have {start + num_bytes} bytes for {what}, got {got}; {AGAIN}")
    return found


def opened(path: str) -> IO[bytes]:
    """Return a file opened for reading, unpacked if its name ends in .gz."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {reason(error)}; correct the path") from None
    return _Unpacked(file) if path.endswith(".gz") else file  # type: ignore[return-value]


class _Unpacked(gzip.GzipFile):
    """A packed file, which closes the file below it too."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._below = file

    def close(self) -> None:
        super().close()
        self._below.close()


def read(file: IO[bytes], path: str, num_bytes: int) -> bytes:
    """Return up to `num_bytes` bytes. Raise HpxferError if they cannot be read or unpacked."""
    try:
        return file.read(num_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HpxferError(f"{path}: must be whole and packed by gzip, got {error}; {AGAIN}") from None
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {reason(error)}; {AGAIN}") from None


def either(path: str) -> str | None:
    """Return `path` or `path.gz`, whichever is a file, or None."""
    return next((found for found in (path, f"{path}.gz") if os.path.isfile(found)), None)


def num_classes(*labels: NDArray[np.int64]) -> tuple[int, int]:
    """Return (first, number of classes) of the labels of all splits: first is 1 if labels go from 1 up without a gap.

    Then label 1 is class 0, as in the letters of EMNIST.
    """
    seen = np.unique(np.concatenate(labels))
    first = int(len(seen) > 0 and seen[0] == 1 and seen[-1] == len(seen))
    return first, int(seen[-1]) + 1 - first if len(seen) else 0


def require_equal(path: str, num_inputs: int, labels: str, num_labels: int) -> None:
    """Raise HpxferError unless there are as many labels as samples, and at least one."""
    if num_inputs != num_labels:
        raise HpxferError(
            f"{path}: must hold as many samples as {labels} has labels, got {num_inputs} and {num_labels}; fetch both "
            "files again"
        )
    if not num_inputs:
        raise HpxferError(f"{path}: must hold at least one sample, got none; name other files")
