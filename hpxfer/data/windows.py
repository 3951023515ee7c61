"""The order of the training windows, and random words: pure functions of a seed or a name, the same on every machine.

The order is a keyed bijection, so that no permutation is ever held in memory. The words are those of SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): word n of a stream is
mix(start + (n + 1) * GAMMA) modulo 2^64, where the hash of the stream's name is the start.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Four rounds make a Feistel network pseudo-random in a large domain (Luby and Rackoff 1988). This one may be small.
ROUNDS = 8
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def by_epoch(begin: int, end: int, size: int, seed: int) -> NDArray[np.int64]:
    """Return which of `size` rows a seed reads as its row `begin` to its row `end`: each once per epoch."""
    epochs, rows = np.divmod(np.arange(begin, end), size)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        rows[here] = shuffled(rows[here], size, seed, epoch)
    return rows


def shuffled(index: NDArray[np.int64], size: int, seed: int, epoch: int = 0) -> NDArray[np.int64]:
    """Return where a permutation of range(size), chosen by `seed` and `epoch`, sends each index, [N] as `index`.

    The Feistel network permutes the numbers below a power of 4, which is at most 4 times size. A value outside
    range(size) is sent on along its cycle until it is inside.
    """
    assert index.ndim == 1, index.shape
    assert index.size == 0 or (index.min() >= 0 and index.max() < size), f"an index is outside range({size})"
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    sequence = np.random.SeedSequence(seed, spawn_key=(epoch,) if epoch else ())
    keys = sequence.generate_state(ROUNDS, np.uint64).astype(np.uint64)
    value = _feistel(index.astype(np.uint64), half_bits, keys)
    while (outside := value >= size).any():
        value[outside] = _feistel(value[outside], half_bits, keys)
    return value.astype(np.int64)


def _feistel(value: NDArray[np.uint64], half_bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a permutation of the numbers of 2 * half_bits bits, elementwise."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = value >> shift, value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the splitmix64 finalizer of each value: every input bit changes about half of the output's."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def words(stream: str, begin: int, end: int, per_sample: int) -> NDArray[np.uint64]:
    """Return the words of samples `begin` to `end` of a stream, uint64 [end - begin, per_sample]."""
    start = np.uint64(int.from_bytes(hashlib.blake2b(stream.encode(), digest_size=8).digest(), "little"))
    counter = np.arange(begin * per_sample + 1, end * per_sample + 1, dtype=np.uint64)
    return _mix(counter * _GAMMA + start).reshape(end - begin, per_sample)


def word_parts(found: NDArray[np.uint64], dtype: str) -> NDArray[Any]:
    """Return the words [N, W] cut into smaller numbers, the lowest bits first: `<u1` gives [N, 8 W]."""
    return np.ascontiguousarray(found, dtype="<u8").view(dtype)
