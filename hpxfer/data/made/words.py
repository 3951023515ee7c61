"""words: random words for samples that are made: any part of a stream by itself, with the same bits everywhere.

The words are those of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014): word n of a stream is mix(start + (n + 1) * GAMMA) modulo 2^64. The hash of the stream's name is the start.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.data.windows import mix

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def words(stream: str, begin: int, end: int, per_sample: int) -> NDArray[np.uint64]:
    """Return the words of samples `begin` to `end` of a stream, uint64 [end - begin, per_sample]."""
    start = np.uint64(int.from_bytes(hashlib.blake2b(stream.encode(), digest_size=8).digest(), "little"))
    counter = np.arange(begin * per_sample + 1, end * per_sample + 1, dtype=np.uint64)
    return mix(counter * _GAMMA + start).reshape(end - begin, per_sample)


def parts(found: NDArray[np.uint64], dtype: str) -> NDArray[Any]:
    """Return the words [N, W] cut into smaller numbers, the lowest bits first: `<u1` gives [N, 8 W]."""
    return np.ascontiguousarray(found, dtype="<u8").view(dtype)
